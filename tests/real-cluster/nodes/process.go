package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// process is the first container of a pod, as a process of this machine.
type process struct {
	uid     types.UID
	address string
	name    string // of the network namespace
	folder  string
	command *exec.Cmd
	ended   chan struct{}
}

// program is the program that runs a pod; empty for a pod that is only reported.
func (k *kubelet) program(pod *corev1.Pod) string {
	for image, program := range k.programs {
		if strings.Contains(pod.Spec.Containers[0].Image, image) {
			return program
		}
	}
	return ""
}

// stop ends the process of a pod, unless it is that of the pod with this UID.
func (k *kubelet) stop(key string, unless types.UID) {
	k.mutex.Lock()
	found := k.running[key]
	if found == nil || found.uid == unless {
		k.mutex.Unlock()
		return
	}
	delete(k.running, key)
	k.mutex.Unlock()
	_ = found.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-found.ended:
	case <-time.After(10 * time.Second):
		_ = found.command.Process.Kill()
		<-found.ended
	}
	_ = exec.Command("ip", "netns", "delete", found.name).Run()
	log.Printf("%s: stopped", key)
}

// start returns the process of a pod, and starts it if it does not run.
func (k *kubelet) start(ctx context.Context, pod *corev1.Pod, program string) (*process, error) {
	key := pod.Namespace + "/" + pod.Name
	k.mutex.Lock()
	defer k.mutex.Unlock()
	found := k.running[key]
	if found != nil {
		select {
		case <-found.ended:
			log.Printf("%s: ended: %v", key, found.command.ProcessState)
		default:
			return found, found.volumes(ctx, k, pod)
		}
	} else {
		k.address++
		name := fmt.Sprintf("real%d", k.address)
		found = &process{
			uid: pod.UID, name: name, folder: filepath.Join(k.folder, string(pod.UID)),
			address: fmt.Sprintf("10.99.%d.%d", k.address/250, 2+k.address%250),
		}
		if err := network(name, found.address); err != nil {
			return nil, err
		}
	}
	if err := found.volumes(ctx, k, pod); err != nil {
		return nil, err
	}
	if err := found.run(k, pod, program); err != nil {
		return nil, err
	}
	k.running[key] = found
	return found, nil
}

// network makes a network namespace on the bridge of the control plane.
func network(name, address string) error {
	_ = exec.Command("ip", "netns", "delete", name).Run()
	_ = exec.Command("ip", "link", "delete", name).Run()
	script := fmt.Sprintf(`set -e
ip netns add %[1]s
ip link add %[1]s type veth peer name eth0 netns %[1]s
ip link set %[1]s master real-cluster up
ip -n %[1]s addr add %[2]s/16 dev eth0
ip -n %[1]s link set eth0 up
ip -n %[1]s link set lo up
ip -n %[1]s route add default via 10.99.0.1`, name, address)
	if output, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("network %s: %w: %s", name, err, output)
	}
	return nil
}

func write(folder string, files map[string][]byte) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		path := filepath.Join(folder, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
			continue
		}
		// In place, because single files are bind mounts.
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// volumes writes the files of ConfigMaps, Secrets and the service account.
func (p *process) volumes(ctx context.Context, k *kubelet, pod *corev1.Pod) error {
	for _, volume := range pod.Spec.Volumes {
		files := map[string][]byte{}
		switch {
		case volume.ConfigMap != nil:
			found, err := k.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for name, text := range found.Data {
				files[name] = []byte(text)
			}
		case volume.Secret != nil:
			found, err := k.client.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
			if err == nil {
				files = found.Data
			} else if volume.Secret.Optional == nil || !*volume.Secret.Optional {
				return err
			}
		}
		if err := write(filepath.Join(p.folder, volume.Name), files); err != nil {
			return err
		}
	}
	folder := filepath.Join(p.folder, "service-account")
	if _, err := os.Stat(filepath.Join(folder, "token")); err == nil {
		return nil
	}
	seconds := int64(24 * 60 * 60)
	token, err := k.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	authority, err := k.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return write(folder, map[string][]byte{
		"token": []byte(token.Status.Token), "ca.crt": []byte(authority.Data["ca.crt"]), "namespace": []byte(pod.Namespace),
	})
}

// run starts the process, with the pod's volumes mounted where the container has them.
func (p *process) run(k *kubelet, pod *corev1.Pod, program string) error {
	container := pod.Spec.Containers[0]
	script := []string{"set -e"}
	mount := func(from, to string) {
		script = append(script, fmt.Sprintf("mount --bind '%s' '%s'", from, to))
	}
	prepare := func(from, to string) error {
		mount(from, to)
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		if info.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		file, err := os.OpenFile(to, os.O_CREATE|os.O_RDONLY, 0o644)
		if err == nil {
			err = file.Close()
		}
		return err
	}
	if err := prepare(filepath.Join(p.folder, "service-account"), serviceAccount); err != nil {
		return err
	}
	for _, volume := range container.VolumeMounts {
		if volume.MountPath == serviceAccount {
			continue
		}
		if err := prepare(filepath.Join(p.folder, volume.Name, volume.SubPath), volume.MountPath); err != nil {
			return err
		}
	}
	script = append(script, fmt.Sprintf("hostname '%s'", pod.Name), `exec "$@"`)
	arguments := []string{"netns", "exec", p.name, "unshare", "--uts", "bash", "-c", strings.Join(script, "\n"), "pod", program}
	command := exec.Command("ip", append(arguments, container.Args...)...)
	host, port, _ := strings.Cut(k.server, ":")
	command.Env = []string{
		"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port, "PATH=" + os.Getenv("PATH"), "HOME=/tmp",
	}
	for _, variable := range container.Env {
		value := variable.Value
		if from := variable.ValueFrom; from != nil && from.FieldRef != nil {
			value = map[string]string{
				"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "status.podIP": p.address,
			}[from.FieldRef.FieldPath]
		}
		command.Env = append(command.Env, variable.Name+"="+value)
	}
	output, err := os.OpenFile(filepath.Join(k.folder, pod.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	// The processes end with this program.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return err
	}
	p.command, p.ended = command, make(chan struct{})
	go func() {
		_ = command.Wait()
		close(p.ended)
	}()
	log.Printf("%s/%s: process %d at %s", pod.Namespace, pod.Name, command.Process.Pid, p.address)
	return nil
}

// ready is the result of the readiness probe.
func (p *process) ready(pod *corev1.Pod) bool {
	probe := pod.Spec.Containers[0].ReadinessProbe
	if probe == nil || probe.HTTPGet == nil {
		return true
	}
	port := probe.HTTPGet.Port.IntValue()
	for _, named := range pod.Spec.Containers[0].Ports {
		if named.Name == probe.HTTPGet.Port.StrVal {
			port = int(named.ContainerPort)
		}
	}
	client := http.Client{Timeout: time.Second}
	response, err := client.Get(fmt.Sprintf("http://%s:%d%s", p.address, port, probe.HTTPGet.Path))
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}
