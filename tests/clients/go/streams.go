package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
)

// protocol is one way in which client-go opens streams.
type protocol struct {
	name     string
	executor func(*rest.Config, *url.URL) (remotecommand.Executor, error)
	dialer   func(*rest.Config, *url.URL) (httpstream.Dialer, error)
}

var protocols = []protocol{
	{"SPDY", func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
	}, spdyDialer},
	{"WebSocket", func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	}, func(config *rest.Config, url *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialer(url, config)
	}},
}

func spdyDialer(config *rest.Config, url *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), nil
}

// streams runs commands in a pod, attaches to it and forwards ports, over SPDY and over WebSockets. os.Args[3] is the
// file with the pods: "real" runs as processes, "simulated" has none.
func streams(ctx context.Context, config *rest.Config) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := createPods(ctx, clients, os.Args[3]); err != nil {
		return err
	}
	for _, protocol := range protocols {
		client := podClient{clients, config, protocol}
		checks := []func(context.Context) error{
			client.runsCommands, client.resizes, client.endsCommands, client.attaches, client.forwards, client.isRefused,
		}
		for number, check := range checks {
			if err := check(ctx); err != nil {
				return fmt.Errorf("%s, check %d: %w", protocol.name, number, err)
			}
		}
	}
	return follows(ctx, clients)
}

func createPods(ctx context.Context, clients kubernetes.Interface, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var list corev1.PodList
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	pods := clients.CoreV1().Pods("default")
	for _, pod := range list.Items {
		if _, err := pods.Create(ctx, &pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return eventually(ctx, "the pods to be ready", func() (bool, error) {
		for _, pod := range list.Items {
			found, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			ready := false
			for _, condition := range found.Status.Conditions {
				ready = ready || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
			}
			if !ready {
				return false, nil
			}
		}
		return true, nil
	})
}

// podClient opens streams in one way.
type podClient struct {
	clients  kubernetes.Interface
	config   *rest.Config
	protocol protocol
}

func (c podClient) request(pod, subresource string) *rest.Request {
	return c.clients.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod).SubResource(subresource)
}

func (c podClient) exec(ctx context.Context, pod string, io remotecommand.StreamOptions, command ...string) error {
	request := c.request(pod, "exec").VersionedParams(&corev1.PodExecOptions{
		Container: "main",
		Command:   command,
		Stdin:     io.Stdin != nil,
		Stdout:    true,
		Stderr:    io.Stderr != nil,
		TTY:       io.Tty,
	}, scheme.ParameterCodec)
	executor, err := c.protocol.executor(c.config, request.URL())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, io)
}

// runsCommands: all of the input arrives and ends, the outputs are separate, and the exit code is returned.
func (c podClient) runsCommands(ctx context.Context) error {
	input := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var out, errOut bytes.Buffer
	io := remotecommand.StreamOptions{Stdin: bytes.NewReader(input), Stdout: &out, Stderr: &errOut}
	err := c.exec(ctx, "real", io, "sh", "-c", "cat; echo done >&2; exit 3")
	var exit exec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 3 {
		return fmt.Errorf("expected exit code 3, not %v", err)
	}
	if !bytes.Equal(out.Bytes(), input) || errOut.String() != "done\n" {
		return fmt.Errorf("%d bytes came back, and %q", out.Len(), errOut.String())
	}
	return c.exec(ctx, "real", remotecommand.StreamOptions{Stdout: &out}, "true")
}

// sizes hands out sizes of a terminal.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, open := <-s
	if !open {
		return nil
	}
	return &size
}

// resizes: a command sees the size of its terminal, and its changes.
func (c podClient) resizes(ctx context.Context) error {
	queue := make(sizes, 1)
	queue <- remotecommand.TerminalSize{Width: 90, Height: 30}
	defer close(queue)
	read, write := io.Pipe()
	options := remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: write, Tty: true, TerminalSizeQueue: queue}
	ended := make(chan error, 1)
	go func() {
		script := "until test \"$(stty size)\" = '30 90'; do sleep 0.05; done; echo first; " +
			"until test \"$(stty size)\" = '40 120'; do sleep 0.05; done; echo second"
		ended <- c.exec(ctx, "real", options, "sh", "-c", script)
		write.Close()
	}()
	lines := bufio.NewScanner(read)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "first" {
			queue <- remotecommand.TerminalSize{Width: 120, Height: 40}
		}
	}
	return <-ended
}

// endsCommands: a command ends when its client leaves.
func (c podClient) endsCommands(ctx context.Context) error {
	leaving, leave := context.WithCancel(ctx)
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- c.exec(leaving, "real", remotecommand.StreamOptions{Stdout: write}, "sh", "-c", "echo $$; exec sleep 86000")
		write.Close()
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		return err
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("expected a cancelled command, not %v", err)
	}
	return eventually(ctx, "the command to end", func() (bool, error) {
		var out bytes.Buffer
		script := fmt.Sprintf("if test -e /proc/%s; then echo runs; fi", strings.TrimSpace(line))
		err := c.exec(ctx, "real", remotecommand.StreamOptions{Stdout: &out}, "sh", "-c", script)
		return out.Len() == 0, err
	})
}

// attaches: the main program reads the client's input.
func (c podClient) attaches(ctx context.Context) error {
	request := c.request("real", "attach").VersionedParams(&corev1.PodAttachOptions{
		Container: "main", Stdin: true, Stdout: true, Stderr: true,
	}, scheme.ParameterCodec)
	executor, err := c.protocol.executor(c.config, request.URL())
	if err != nil {
		return err
	}
	attached, leave := context.WithCancel(ctx)
	defer leave()
	input, write := io.Pipe()
	read, output := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- executor.StreamWithContext(attached, remotecommand.StreamOptions{Stdin: input, Stdout: output, Stderr: io.Discard})
		output.Close()
	}()
	word := "hello over " + c.protocol.name
	if _, err := fmt.Fprintln(write, word); err != nil {
		return err
	}
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || line != "main: "+word+"\n" {
		return fmt.Errorf("attached, and read %q: %v", line, err)
	}
	leave()
	<-ended
	return nil
}

// forwards: many connections at once through one forwarded port; a connection to a port without a
// listener fails.
func (c podClient) forwards(ctx context.Context) error {
	dialer, err := c.protocol.dialer(c.config, c.request("real", "portforward").URL())
	if err != nil {
		return err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.New(dialer, []string{":8080", ":9"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return err
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	get := func(port uint16) (string, error) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get(fmt.Sprintf("http://localhost:%d/", port))
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	results := make(chan error, 20)
	for range cap(results) {
		go func() {
			text, err := get(ports[0].Local)
			if err == nil && !strings.Contains(text, "Directory listing") {
				err = fmt.Errorf("the server answered %q", text)
			}
			results <- err
		}()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			return err
		}
	}
	if text, err := get(ports[1].Local); err == nil {
		return fmt.Errorf("a port without a listener answered %q", text)
	}
	close(stop)
	// client-go gives up the whole session after a refused connection.
	if err := <-ended; err != nil && !errors.Is(err, portforward.ErrLostConnectionToPod) {
		return err
	}
	return nil
}

// isRefused: no program is behind a simulated pod, and the error says so.
func (c podClient) isRefused(ctx context.Context) error {
	err := c.exec(ctx, "simulated", remotecommand.StreamOptions{Stdout: io.Discard}, "true")
	if err == nil || !strings.Contains(err.Error(), "simulated") {
		return fmt.Errorf("expected a refusal that names the simulation, not %v", err)
	}
	return nil
}

// follows reads a log until its pod is deleted.
func follows(ctx context.Context, clients kubernetes.Interface) error {
	pods := clients.CoreV1().Pods("default")
	stream, err := pods.GetLogs("real", &corev1.PodLogOptions{Container: "main", Follow: true}).Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	if !lines.Scan() || lines.Text() != "ready" {
		return fmt.Errorf("the log begins with %q: %v", lines.Text(), lines.Err())
	}
	if err := pods.Delete(ctx, "real", metav1.DeleteOptions{}); err != nil {
		return err
	}
	for lines.Scan() {
	}
	return lines.Err()
}
