// Program nodes gives a real control plane nodes that have no machine. Most pods are only reported:
// a pod is Running as soon as it is bound, and succeeds after the seconds of its annotation
// real-cluster/run-seconds. Pods whose image is named by -run are processes of this machine, each in
// a network namespace of its own with the address that the pod reports, so that webhooks and
// aggregated APIs work through Services. It needs Linux, iproute2 and root.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const runSeconds = "real-cluster/run-seconds"

type kubelet struct {
	client   kubernetes.Interface
	pods     cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[string]
	programs map[string]string
	folder   string
	server   string

	mutex   sync.Mutex
	running map[string]*process // by "namespace/name"
	address int
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of an administrator")
	count := flag.Int("nodes", 10, "number of nodes")
	cpu := flag.String("cpu", "1000", "CPUs of a node")
	memory := flag.String("memory", "4Ti", "memory of a node")
	pods := flag.String("pods", "10000", "pods of a node")
	folder := flag.String("folder", "/tmp/real-cluster", "folder for volumes and logs")
	server := flag.String("server", "10.99.0.1:6443", "address of the API server for processes")
	run := flag.String("run", "", "IMAGE=PROGRAM,...: images, by a part of their name, that run as processes")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	config.QPS, config.Burst = 2000, 4000
	config.ContentType = "application/vnd.kubernetes.protobuf"
	k := &kubelet{
		client: kubernetes.NewForConfigOrDie(config), programs: map[string]string{}, folder: *folder, server: *server,
		running: map[string]*process{}, address: 1,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	for _, pair := range strings.Split(*run, ",") {
		if image, program, ok := strings.Cut(pair, "="); ok {
			k.programs[image] = program
		}
	}
	ctx := context.Background()
	for index := range *count {
		check(k.node(ctx, fmt.Sprintf("fake-%d", index), *cpu, *memory, *pods))
	}
	factory := informers.NewSharedInformerFactory(k.client, 0)
	k.pods = factory.Core().V1().Pods().Informer()
	enqueue := func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			k.queue.Add(key)
		}
	}
	_, err = k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, DeleteFunc: enqueue, UpdateFunc: func(_, now any) { enqueue(now) },
	})
	check(err)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for range 16 {
		go k.work(ctx)
	}
	log.Printf("%d nodes", *count)
	select {}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// node creates a node, or makes an existing one ready.
func (k *kubelet) node(ctx context.Context, name, cpu, memory, pods string) error {
	capacity := corev1.ResourceList{
		"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory), "pods": resource.MustParse(pods),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
	}}
	if _, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	// The API server adds a taint that the node lifecycle controller, which does not run here, would remove.
	untainted := []byte(`{"spec":{"taints":null}}`)
	if _, err := k.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, untainted, metav1.PatchOptions{}); err != nil {
		return err
	}
	status, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "has no machine",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}},
	}})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
	return err
}

func (k *kubelet) work(ctx context.Context) {
	for {
		key, _ := k.queue.Get()
		if err := k.reconcile(ctx, key); err != nil && !apierrors.IsNotFound(err) {
			log.Printf("%s: %v", key, err)
			k.queue.AddRateLimited(key)
		} else {
			k.queue.Forget(key)
		}
		k.queue.Done(key)
	}
}

func (k *kubelet) reconcile(ctx context.Context, key string) error {
	object, exists, err := k.pods.GetIndexer().GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		k.stop(key, "")
		return nil
	}
	pod := object.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return nil
	}
	k.stop(key, pod.UID)
	if pod.DeletionTimestamp != nil {
		if left := untilStop(pod); left > 0 {
			k.queue.AddAfter(key, left)
			return nil
		}
		k.stop(key, "")
		var now int64
		return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
	}
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed:
		return nil
	case corev1.PodRunning:
		return k.continued(ctx, key, pod)
	}
	if program := k.program(pod); program != "" {
		started, err := k.start(ctx, pod, program)
		if err != nil {
			return err
		}
		// Ready after the first probe that succeeds.
		return k.report(ctx, pod, corev1.PodRunning, started.address, false)
	}
	return k.report(ctx, pod, corev1.PodRunning, "10.98.0.1", true)
}

// untilStop is the time for which the first container of a deleted pod continues to run: the sleep of its
// preStop hook, within the grace period.
func untilStop(pod *corev1.Pod) time.Duration {
	hooks := pod.Spec.Containers[0].Lifecycle
	if hooks == nil || hooks.PreStop == nil || hooks.PreStop.Sleep == nil || pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	left := *pod.DeletionGracePeriodSeconds - hooks.PreStop.Sleep.Seconds
	return time.Until(pod.DeletionTimestamp.Add(-time.Duration(max(left, 0)) * time.Second))
}

// continued ends a pod whose time is over, restarts a process that ended, and probes it.
func (k *kubelet) continued(ctx context.Context, key string, pod *corev1.Pod) error {
	if program := k.program(pod); program != "" {
		started, err := k.start(ctx, pod, program)
		if err != nil {
			return err
		}
		ready := started.ready(pod)
		k.queue.AddAfter(key, time.Second)
		if ready == isReady(pod) && pod.Status.PodIP == started.address {
			return nil
		}
		return k.report(ctx, pod, corev1.PodRunning, started.address, ready)
	}
	seconds, err := strconv.ParseFloat(pod.Annotations[runSeconds], 64)
	if err != nil || pod.Status.StartTime == nil {
		return nil
	}
	left := time.Until(pod.Status.StartTime.Add(time.Duration(seconds * float64(time.Second))))
	if left > 0 {
		k.queue.AddAfter(key, left)
		return nil
	}
	return k.report(ctx, pod, corev1.PodSucceeded, pod.Status.PodIP, false)
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// report writes the status of a pod.
func (k *kubelet) report(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, address string, ready bool) error {
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	if phase == corev1.PodSucceeded {
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()}}
	}
	status := corev1.PodStatus{Phase: phase, HostIP: "10.99.0.1", PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	if status.StartTime = pod.Status.StartTime; status.StartTime == nil {
		now := metav1.Now()
		status.StartTime = &now
	}
	is := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: metav1.Now()})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, State: state, Ready: ready,
		})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(
		ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
