package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// official is where the SAM CLI finds the runtime's image, and the file that
// tells quickly whether it can be reached.
const (
	officialImage = "public.ecr.aws/lambda/provided:al2023-"
	officialProbe = "https://public.ecr.aws/v2/"
	standIn       = "lambdalock-standin:al2023-" // another name, so that nobody takes it for the real one
)

// baseImage returns the image that the functions run in: the official one if it
// is here or can be had, or else a stand-in that has just what is needed.
func baseImage(ctx context.Context, out *screen, e *engine, cache, dir string) (string, error) {
	official := officialImage + e.arch
	if _, err := e.docker(ctx, "image", "inspect", official); err == nil {
		out.line("base image %s", official)
		return official, nil
	}
	if reachable(ctx) {
		out.line("pulling the base image %s", official)
		pull, cancel := context.WithTimeout(ctx, 2*time.Minute)
		_, err := e.docker(pull, "pull", "--quiet", official)
		cancel()
		if err == nil {
			return official, nil
		}
		out.line("it cannot be pulled: %v", err)
	}
	name := standIn + e.arch
	if _, err := e.docker(ctx, "image", "inspect", name); err == nil {
		out.line("base image %s: a stand-in, built before", name)
		return name, nil
	}
	if err := install(ctx, out, "busybox"); err != nil {
		return "", err
	}
	out.line("building the base image %s, a stand-in: a static busybox, CA certificates", name)
	return name, buildStandIn(ctx, e, name, cache, dir)
}

// reachable tells whether the registry answers at all, soon.
func reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, officialProbe, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<10))
	return response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusOK
}

// standInFile has a shell, mv and chmod, with which the SAM CLI puts its
// emulator in, and cp and rm for layers. busybox looks at the name it is called
// by, so copies do.
const standInFile = `FROM scratch
COPY busybox /bin/sh
COPY busybox /bin/mv
COPY busybox /bin/chmod
COPY busybox /bin/cp
COPY busybox /bin/rm
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
WORKDIR /tmp
WORKDIR /var/task
`

func buildStandIn(ctx context.Context, e *engine, name, cache, dir string) error {
	context := filepath.Join(dir, "image")
	if err := os.Mkdir(context, 0o755); err != nil {
		return err
	}
	for from, to := range map[string]string{
		filepath.Join(cache, "busybox-static"): "busybox",
		"/etc/ssl/certs/ca-certificates.crt":   "ca-certificates.crt",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(context, to), text, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(standInFile), 0o644); err != nil {
		return err
	}
	if _, err := e.docker(ctx, "build", "--quiet", "--tag", name, context); err != nil {
		return fmt.Errorf("the stand-in image: %w", err)
	}
	return nil
}
