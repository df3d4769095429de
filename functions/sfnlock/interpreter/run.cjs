// Runs executions of a state machine, some at once. Standard input is
//   {"definition": {...}, "url": "http://...", "executions": {"name": {"input": {...}, "context": {...}, "pauses": false}}}
// and standard output {"name": {"status": "...", "error": "...", "cause": "...", "states": [...]}}.
// A task is a POST of its parameters to URL/NAME/STATE, answered by {"result"},
// {"error", "cause"} or {"abort": true}.
'use strict';
const { StateMachine } = require('aws-local-stepfunctions');

async function execute(machine, url, { input, context, pauses: own }) {
  let running;
  let aborted = false;
  const tasks = {};
  const pauses = {};
  for (const [name, state] of Object.entries(machine.definition.States)) {
    if (state.Type !== 'Task') continue;
    pauses[name] = 20;
    tasks[name] = async (parameters) => {
      // This interpreter goes on behind an abort, with the task's timeout and retry.
      if (aborted) return new Promise(() => {});
      const response = await fetch(`${url}/${name}`, { method: 'POST', body: JSON.stringify(parameters) });
      const answer = await response.json();
      if (answer.abort) {
        aborted = true;
        running.abort();
        return new Promise(() => {});
      }
      if (answer.error) throw Object.assign(new Error(answer.cause), { name: answer.error });
      return answer.result;
    };
  }
  // Acquire's own pauses are tried once, with their jitter.
  if (own) delete pauses.Acquire;
  running = machine.run(input, {
    context,
    overrides: { taskResourceLocalHandlers: tasks, waitTimeOverrides: { Pay: 20 }, retryIntervalOverrides: pauses },
  });
  const states = [];
  const log = (async () => {
    for await (const event of running.eventLogs) {
      if (event.type === 'StateEntered') states.push(event.state.name);
    }
  })();
  try {
    await running.result;
    await log;
    return { status: 'SUCCEEDED', states };
  } catch (failure) {
    if (failure.name === 'ExecutionAbortedError') return { status: 'ABORTED', states };
    return { status: 'FAILED', error: failure.cause?.name ?? failure.name, cause: failure.cause?.message ?? failure.message, states };
  }
}

async function main() {
  let text = '';
  for await (const chunk of process.stdin) text += chunk;
  const { definition, url, executions } = JSON.parse(text);
  const machine = new StateMachine(definition); // checks the definition, 0.2 s
  const rest = Object.entries(executions);
  const outcomes = {};
  const one = async () => {
    for (let next = rest.shift(); next; next = rest.shift()) {
      const [name, e] = next;
      outcomes[name] = await execute(machine, `${url}/${name}`, e);
    }
  };
  await Promise.all(Array.from({ length: 8 }, one)); // as many as a small machine answers in time
  process.stdout.write(JSON.stringify(outcomes), () => process.exit(0));
}

main();
