// Runs executions of a state machine, some at once. Standard input is
//   {"definition": {...}, "url": "http://...", "atOnce": 8, "executions": {"name": {"input": {...}, "context": {...}, "pauses": {"state": [20, -1]}}}}
// and standard output {"name": {"status": "...", "error": "...", "cause": "...", "states": [...]}}.
// A task is a POST of its parameters to URL/NAME/STATE, answered by {"result"},
// {"error", "cause"} or {"abort": true}. A pause is in milliseconds, one for each retrier of
// the state; -1 is as long as the definition says, with its jitter. Others are 20.
'use strict';
const { StateMachine } = require('aws-local-stepfunctions');

async function execute(machine, url, { input, context, pauses: some }) {
  let running;
  let aborted = false;
  const tasks = {};
  const pauses = {};
  for (const [name, state] of Object.entries(machine.definition.States)) {
    if (state.Type !== 'Task') continue;
    pauses[name] = some?.[name] ?? 20;
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
  const { definition, url, atOnce, executions } = JSON.parse(text);
  const machine = new StateMachine(definition); // checks the definition, 0.2 s
  const rest = Object.entries(executions);
  const outcomes = {};
  const one = async () => {
    for (let next = rest.shift(); next; next = rest.shift()) {
      const [name, e] = next;
      outcomes[name] = await execute(machine, `${url}/${name}`, e);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, one));
  process.stdout.write(JSON.stringify(outcomes), () => process.exit(0));
}

main();
