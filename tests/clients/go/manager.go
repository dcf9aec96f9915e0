package main

import (
	"context"
	"fmt"
	"os"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const managerNamespace = "go-manager"

// labeller is what most operators are: it owns a config map per job, with a finalizer, status and an owner reference.
type labeller struct{ client.Client }

func (r *labeller) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var job batchv1.Job
	if err := r.Get(ctx, request.NamespacedName, &job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !job.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(&job, "berth.dev/test") {
			return ctrl.Result{}, r.Update(ctx, &job)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(&job, "berth.dev/test") {
		return ctrl.Result{}, r.Update(ctx, &job)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: job.Name, Namespace: job.Namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, owned, func() error {
		owned.Data = map[string]string{"uid": string(job.UID)}
		return controllerutil.SetControllerReference(&job, owned, r.Scheme())
	})
	return ctrl.Result{}, err
}

// manage runs a manager until its controller has done its work and cleaned up.
func manage(ctx context.Context, config *rest.Config) error {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	plain, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: managerNamespace}}
	if err := plain.Create(ctx, namespace); err != nil {
		return err
	}
	hooks, err := newWebhooks()
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		WebhookServer:                 hooks.server,
		LeaderElection:                true,
		LeaderElectionID:              "go-manager",
		LeaderElectionNamespace:       managerNamespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).
		For(&batchv1.Job{}).Owns(&corev1.ConfigMap{}).Complete(&labeller{manager.GetClient()})
	if err != nil {
		return err
	}
	hooks.register(manager)
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(running) }()

	suspended := true
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: managerNamespace},
		Spec: batchv1.JobSpec{Suspend: &suspended, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "busybox"}},
		}}},
	}
	if err := plain.Create(ctx, job); err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(job)
	var owned corev1.ConfigMap
	if err := eventually(ctx, "the owned config map", func() (bool, error) {
		err := plain.Get(ctx, key, &owned)
		return err == nil, client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	// What it owns comes back, because the manager watches it.
	if err := plain.Delete(ctx, &owned); err != nil {
		return err
	}
	if err := eventually(ctx, "the config map's return", func() (bool, error) {
		var again corev1.ConfigMap
		err := plain.Get(ctx, key, &again)
		return err == nil && again.UID != owned.UID, client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	if err := eventually(ctx, "the webhook server", func() (bool, error) {
		return hooks.server.StartedChecker()(nil) == nil, nil
	}); err != nil {
		return err
	}
	if err := hooks.check(ctx, plain); err != nil {
		return err
	}
	if err := plain.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return err
	}
	if err := eventually(ctx, "the job's end", func() (bool, error) {
		err := plain.Get(ctx, key, &batchv1.Job{})
		return err != nil && client.IgnoreNotFound(err) == nil, client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	stop()
	if err := <-ended; err != nil {
		return fmt.Errorf("the manager: %w", err)
	}
	return plain.Delete(ctx, namespace)
}
