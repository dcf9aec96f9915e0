// What people write in Go: shared informers of client-go, and a controller-runtime manager with leader election and an
// admission webhook, and streams of pods. Usage: client KUBECONFIG informers|manager|protobuf, or client KUBECONFIG
// streams PODS. Ends with 0 when everything came out as it should.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) < 3 || (os.Args[2] == "streams") != (len(os.Args) == 4) {
		fail(fmt.Errorf("usage: client KUBECONFIG informers|manager|protobuf, or client KUBECONFIG streams PODS"))
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	parts := map[string]func(context.Context, *rest.Config) error{
		"informers": informers, "manager": manage, "protobuf": protobufOnly, "streams": streams,
	}
	run, known := parts[os.Args[2]]
	if !known {
		fail(fmt.Errorf("no part is called %s", os.Args[2]))
	}
	if err := run(ctx, config); err != nil {
		fail(err)
	}
	fmt.Println("ok")
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// eventually asks until the answer is yes.
func eventually(ctx context.Context, what string, is func() (bool, error)) error {
	for {
		yes, err := is()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if yes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
