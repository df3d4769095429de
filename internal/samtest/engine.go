package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// engine is a Docker engine.
type engine struct {
	host   string // DOCKER_HOST
	arch   string // as the template's Architecture says it
	bridge string // the host's address on the containers' network, "" where it is not ours, as with Docker Desktop
	stop   func()
}

// noEngineError says why there is no Docker here. It is no failure of what is
// tested.
type noEngineError struct{ reason string }

func (e *noEngineError) Error() string { return "no Docker engine can run here: " + e.reason }

// openEngine takes the engine that answers, or starts one of our own.
func openEngine(ctx context.Context, out *screen, cache, dir string) (*engine, error) {
	host, version, err := answering(ctx)
	e := &engine{host: host, stop: func() {}}
	if err == nil {
		out.line("Docker engine %s answers and is used", version)
	} else if e, err = startEngine(ctx, out, cache, dir); err != nil {
		return nil, err
	}
	if err := e.look(ctx); err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

// answering looks for an engine where the docker command would.
func answering(ctx context.Context) (host, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := exec.LookPath("docker"); err != nil {
		return "", "", err
	}
	host, err = output(ctx, nil, "docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	if err != nil {
		return "", "", err
	}
	version, err = output(ctx, []string{"DOCKER_HOST=" + host}, "docker", "version", "--format", "{{.Server.Version}}")
	return host, version, err
}

// startEngine starts an engine of our own. It changes no firewall rule and no
// forwarding: a function reaches the host on the bridge and nothing beyond it,
// and the host reaches a function through the engine's own proxy.
func startEngine(ctx context.Context, out *screen, cache, dir string) (*engine, error) {
	if runtime.GOOS != "linux" {
		return nil, &noEngineError{"none answers; please start Docker"}
	}
	if os.Geteuid() != 0 {
		return nil, &noEngineError{"none answers, and to start one needs root"}
	}
	out.line("no Docker engine answers; starting one with a data root of its own")
	if err := install(ctx, out, "docker"); err != nil {
		return nil, &noEngineError{err.Error()}
	}
	dockerd, err := find("dockerd")
	if err != nil {
		return nil, &noEngineError{err.Error()}
	}
	e := &engine{host: "unix://" + filepath.Join(dir, "docker.sock")}
	settings, err := json.Marshal(map[string]any{
		"hosts": []string{e.host}, "pidfile": filepath.Join(dir, "docker.pid"),
		"data-root": filepath.Join(cache, "docker"), "exec-root": filepath.Join(dir, "exec"),
		"storage-driver": "vfs", // works on every file system, also in a container
		"iptables":       false, "ip6tables": false, "ip-forward": false, "ip-masq": false,
	})
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "docker.json")
	if err := os.WriteFile(config, settings, 0o600); err != nil {
		return nil, err
	}
	_, noBridge := net.InterfaceByName(defaultBridge)
	p, err := background(ctx, dir, "dockerd", exec.Command(dockerd, "--config-file", config), 30*time.Second, func(ctx context.Context) error {
		_, err := e.docker(ctx, "version", "--format", "{{.Server.Version}}")
		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, &noEngineError{err.Error()}
	}
	e.stop = func() {
		p.stop()
		if noBridge != nil { // the engine made it, and leaves it behind
			ip, err := find("ip")
			if err == nil {
				err = exec.Command(ip, "link", "delete", defaultBridge).Run()
			}
			if err != nil {
				out.line("the network interface %s stays behind: %v", defaultBridge, err)
			}
		}
	}
	return e, nil
}

const defaultBridge = "docker0"

// look asks what the functions need to know.
func (e *engine) look(ctx context.Context) error {
	arch, err := e.docker(ctx, "version", "--format", "{{.Server.Arch}}")
	if err != nil {
		return err
	}
	switch arch {
	case "amd64":
		e.arch = "x86_64"
	case "arm64":
		e.arch = "arm64"
	default:
		return fmt.Errorf("the Docker engine runs on %q; Lambda has x86_64 and arm64", arch)
	}
	name, err := e.docker(ctx, "network", "inspect", "bridge", "--format", `{{index .Options "com.docker.network.bridge.name"}}`)
	if err != nil {
		return err
	}
	bridge, err := net.InterfaceByName(name)
	if err != nil {
		return nil // it is in another machine's kernel, which sends on to our loopback
	}
	addrs, err := bridge.Addrs()
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		if ip, ok := addr.(*net.IPNet); ok && ip.IP.To4() != nil {
			e.bridge = ip.IP.String()
			return nil
		}
	}
	return fmt.Errorf("the network interface %s has no IPv4 address", name)
}

// docker runs the docker command and returns what it printed.
func (e *engine) docker(ctx context.Context, args ...string) (string, error) {
	return output(ctx, []string{"DOCKER_HOST=" + e.host, "DOCKER_BUILDKIT=0"}, "docker", args...)
}

// removeContainers removes what the SAM CLI left running for functions below
// the folder, and nobody else's containers.
func (e *engine) removeContainers(built string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	ids, err := e.docker(ctx, "ps", "--all", "--quiet", "--filter", "label=sam.cli.container.type=lambda")
	if err != nil || ids == "" {
		return err
	}
	var ours []string
	for id := range strings.FieldsSeq(ids) {
		mounts, err := e.docker(ctx, "inspect", "--format", "{{range .Mounts}}{{println .Source}}{{end}}", id)
		if err != nil {
			continue // it is gone by now
		}
		if strings.Contains("\n"+mounts, "\n"+built+string(filepath.Separator)) {
			ours = append(ours, id)
		}
	}
	if ours == nil {
		return nil
	}
	_, err = e.docker(ctx, append([]string{"rm", "--force"}, ours...)...)
	return err
}

// output runs a command and returns what it printed.
func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = ownGroup()
	text, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, lastLines(string(exit.Stderr), 2))
	}
	return strings.TrimSpace(string(text)), err
}
