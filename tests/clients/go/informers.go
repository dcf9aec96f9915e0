package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

// informers follows config maps (built in, protobuf on the wire) and cluster queues (custom) through shared informers.
func informers(ctx context.Context, config *rest.Config) error {
	const namespace = "go-informers"
	typed := rest.CopyConfig(config)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return err
	}
	core := clients.CoreV1()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := core.Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer core.Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})

	var lock sync.Mutex
	counts := map[string]int{}
	count := func(what string) { lock.Lock(); counts[what]++; lock.Unlock() }
	factory := clientinformers.NewSharedInformerFactoryWithOptions(clients, 0, clientinformers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps()
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { count("add") },
		UpdateFunc: func(_, _ any) { count("update") },
		DeleteFunc: func(any) { count("delete") },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%v: not synced", kind)
		}
	}
	maps := core.ConfigMaps(namespace)
	for i := range 20 {
		item := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%d", i)}}
		if _, err := maps.Create(ctx, item, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		item, err := maps.Get(ctx, "m-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		item.Data = map[string]string{"a": "1"}
		_, err = maps.Update(ctx, item, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if err := maps.Delete(ctx, "m-1", metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = eventually(ctx, "the config maps", func() (bool, error) {
		lock.Lock()
		defer lock.Unlock()
		// kube-root-ca.crt may be among them.
		return counts["add"] >= 20 && counts["update"] >= 1 && counts["delete"] == 1, nil
	})
	if err != nil {
		return err
	}
	if item, err := informer.Lister().ConfigMaps(namespace).Get("m-0"); err != nil || item.Data["a"] != "1" {
		return fmt.Errorf("the lister has %v, %v", item, err)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	_, err = maps.Get(ctx, "none", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("not found is %v", err)
	}
	return customInformer(ctx, config)
}

func customInformer(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	queues := schema.GroupVersionResource{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "clusterqueues"}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	lister := factory.ForResource(queues).Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue",
		"metadata": map[string]any{"name": "go"}, "spec": map[string]any{"namespaceSelector": map[string]any{}},
	}}
	if _, err := client.Resource(queues).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := eventually(ctx, "the cluster queue", func() (bool, error) {
		_, err := lister.Get("go")
		return err == nil, nil
	}); err != nil {
		return err
	}
	return client.Resource(queues).Delete(ctx, "go", metav1.DeleteOptions{})
}
