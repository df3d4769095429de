package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// samVersion is the version that install.sh installs.
const samVersion = "1.170.0"

// sam runs the SAM CLI.
type sam struct {
	program string
	engine  *engine
	image   string // base image
	built   string // folder of what it builds, absolute
	dir     string // for what it writes
	out     *screen
	shown   map[string]bool // commands of which one was shown
}

// environment is ours without anything of AWS, because the SAM CLI would hand a
// person's own credentials to the functions, or ask AWS with them.
func (s *sam) environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AWS_") && !strings.HasPrefix(v, "SAM_") {
			env = append(env, v)
		}
	}
	return append(env,
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_DEFAULT_REGION="+region, "SAM_CLI_TELEMETRY=0", "DOCKER_HOST="+s.engine.host,
		// As the functions are deployed.
		"CGO_ENABLED=0", "GOFLAGS=-tags=lambda.norpc -trimpath '-ldflags=-s -w'")
}

func (s *sam) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = s.environment()
	cmd.SysProcAttr = ownGroup()
	// It removes its container when it is asked to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTime
	return cmd
}

// run runs one command to its end and shows it.
func (s *sam) run(ctx context.Context, args ...string) error {
	began := time.Now()
	text, err := s.command(ctx, args...).CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("sam %s: %w\n%s", args[0], err, bytes.TrimSpace(text))
	}
	s.out.line("$ sam %s   %s", s.readable(args), seconds(time.Since(began)))
	return nil
}

func (s *sam) validate(ctx context.Context) error { return s.run(ctx, "validate", "--lint") }

func (s *sam) build(ctx context.Context) error {
	return s.run(ctx, "build", "--build-dir", s.built, "--parameter-overrides", "Architecture="+s.engine.arch)
}

// arguments are those that all local commands have.
func (s *sam) arguments(command string, variables map[string]string, args ...string) ([]string, error) {
	text, err := json.Marshal(map[string]any{"Parameters": variables})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "variables.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	all := append([]string{"local", command}, args...)
	return append(all,
		"--template", filepath.Join(s.built, "template.yaml"),
		"--parameter-overrides", "Architecture="+s.engine.arch,
		"--skip-pull-image", "--invoke-image", s.image,
		"--env-vars", file,
		"--add-host", hostName+":host-gateway"), nil
}

// show prints the first command of a kind.
func (s *sam) show(args []string) {
	if !s.shown[args[1]] {
		s.shown[args[1]] = true
		s.out.line("$ sam %s", s.readable(args))
	}
}

// readable is the arguments with paths as seen from here, in lines of 80
// columns that a shell takes as one.
func (s *sam) readable(args []string) string {
	const indent, limit = len("$ sam "), 78
	root, err := os.Getwd()
	if err != nil {
		root = s.dir
	}
	var b strings.Builder
	width := indent
	for i, arg := range args {
		arg = strings.TrimPrefix(arg, root+string(filepath.Separator))
		next := len(arg) + 1
		if i+1 < len(args) && strings.HasPrefix(arg, "--") && !strings.HasPrefix(args[i+1], "--") {
			next += len(strings.TrimPrefix(args[i+1], root+string(filepath.Separator))) + 1 // an option's value stays with it
		}
		if strings.HasPrefix(arg, "--") && width+next > limit {
			b.WriteString("\\\n" + strings.Repeat(" ", indent))
			width = indent
		}
		b.WriteString(arg + " ")
		width += len(arg) + 1
	}
	return strings.TrimSuffix(b.String(), " ")
}

// local runs the functions by sam local, with these variables.
type local struct {
	*sam
	variables map[string]string
}

// once runs the event in a container of its own. The answer stands alone on
// standard output. The exit status says nothing about the function.
func (s local) once(ctx context.Context, f fixture) ([]byte, error) {
	return s.invoke(ctx, f.function.id, filepath.Join("events", f.Name+".json"))
}

func (s local) invoke(ctx context.Context, id, event string) ([]byte, error) {
	args, err := s.arguments("invoke", s.variables, id, "--event", event)
	if err != nil {
		return nil, err
	}
	s.show(args)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := s.command(ctx, args...)
	var answer, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &answer, &log
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("sam local invoke: %w: %s", err, lastLines(log.String(), 4))
	}
	if answer.Len() == 0 {
		return nil, fmt.Errorf("the function gave no answer: %s", lastLines(log.String(), 4))
	}
	return answer.Bytes(), nil
}

// warm is the step with functions that each have one container for all events,
// which is faster than once of local.
func (s local) warm(events step) step {
	return func(ctx context.Context, at *store, d desk, _ runner, r *report) error {
		server, err := s.start(ctx, "start-lambda", s.variables, "--warm-containers", "LAZY")
		if err != nil {
			return err
		}
		defer server.stop()
		return events(ctx, at, d, warm{s, server}, r)
	}
}

type warm struct {
	local
	server *server
}

func (w warm) once(ctx context.Context, f fixture) ([]byte, error) {
	text, _, err := w.server.post(ctx, f.function.id, f.Event)
	return text, err
}

// server is sam local start-lambda or start-api.
type server struct {
	*process
	base string // URL
}

func (s local) serve(ctx context.Context, what purpose) (service, error) {
	switch what {
	case forRequests:
		return s.start(ctx, "start-api", s.variables, "--warm-containers", "LAZY")
	case forCrowd:
		patient := maps.Clone(s.variables)
		patient["LOCK_WAIT"] = burstWait
		return s.start(ctx, "start-lambda", patient)
	default:
		return s.start(ctx, "start-lambda", s.variables, "--warm-containers", "LAZY")
	}
}

func (s *sam) start(ctx context.Context, command string, variables map[string]string, args ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args, err = s.arguments(command, variables, append(args, "--port", port, "--no-watch")...)
	if err != nil {
		return nil, err
	}
	s.show(args)
	cmd := exec.Command(s.program, args...)
	cmd.Env = s.environment()
	p, err := background(ctx, s.dir, command, cmd, time.Minute, connects(port))
	if err != nil {
		return nil, err
	}
	return &server{p, "http://" + net.JoinHostPort(loopback, port)}, nil
}

func (s *server) call(ctx context.Context, r request) (response, error) {
	return curl(ctx, s.base, r)
}

// overlap reads the reports that there are: the SAM CLI loses the output of a
// container that ends before it has attached to it.
func (s *server) overlap() error {
	s.stop() // then its log is whole
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err
	}
	return checkSections(sections(string(log)), burstSize)
}

// invoke sends an event to start-lambda.
func (s *server) invoke(ctx context.Context, id string, event []byte) (reply, error) {
	text, failed, err := s.post(ctx, id, event)
	if failed && err == nil {
		err = fmt.Errorf("%s: %.300s", id, text)
	}
	return reply{text: text}, err
}

// post is invoke where the answer may be an error, which failed says.
func (s *server) post(ctx context.Context, id string, event []byte) (text []byte, failed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/2015-03-31/functions/"+id+"/invocations", bytes.NewReader(event))
	if err != nil {
		return nil, false, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, false, fmt.Errorf("%w; %s", err, s.tail())
	}
	defer response.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(response.Body); err != nil {
		return nil, false, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("%s: %s: %.300s", id, response.Status, answer.Bytes())
	}
	return answer.Bytes(), response.Header.Get("X-Amz-Function-Error") != "", nil
}
