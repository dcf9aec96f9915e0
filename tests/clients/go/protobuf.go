package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	protobufserializer "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
)

// protobufOnly is a client that takes protobuf and nothing else. What it reads must be what a client that takes JSON reads, and
// the very bytes that Kubernetes' own types would have been written as.
func protobufOnly(ctx context.Context, config *rest.Config) error {
	const namespace = "go-protobuf"
	binary := rest.CopyConfig(config)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf
	clients, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return err
	}
	text := rest.CopyConfig(config)
	text.ContentType = runtime.ContentTypeJSON
	text.AcceptContentTypes = runtime.ContentTypeJSON
	asText, err := kubernetes.NewForConfig(text)
	if err != nil {
		return err
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := clients.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer clients.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
	steps := []struct {
		name string
		run  func() error
	}{
		{"objects", func() error { return objects(ctx, clients, namespace) }},
		{"same", func() error { return sameAsText(ctx, clients, asText, namespace) }},
		{"subresources", func() error { return subresources(ctx, clients, namespace) }},
		{"follow", func() error { return follow(ctx, clients, namespace) }},
		{"metadata", func() error { return metadataOnly(ctx, binary, namespace) }},
		{"discovery", func() error { return discoverBinary(clients, asText) }},
	}
	for _, step := range steps {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func podTemplate() corev1.PodTemplateSpec {
	zero, yes := int64(0), true
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "wired", "b": "2", "a": "1"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &zero,
			Tolerations:                   []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/c:1", Args: []string{"sleep", "10"},
				Env: []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}}},
				SecurityContext: &corev1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: &zero},
			}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}

// objects are made, changed and removed.
func objects(ctx context.Context, clients kubernetes.Interface, namespace string) error {
	named := metav1.ObjectMeta{Name: "wired"}
	create, none := metav1.CreateOptions{}, int32(0)
	template := podTemplate()
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "wired"}}
	pod := &corev1.Pod{ObjectMeta: named, Spec: template.Spec}
	pod.Spec.SchedulerName = "nobody"
	if _, err := clients.CoreV1().Pods(namespace).Create(ctx, pod, create); err != nil {
		return err
	}
	deployment := &appsv1.Deployment{ObjectMeta: named,
		Spec: appsv1.DeploymentSpec{Replicas: &none, Selector: selector, Template: template}}
	if _, err := clients.AppsV1().Deployments(namespace).Create(ctx, deployment, create); err != nil {
		return err
	}
	suspend := true
	job := &batchv1.Job{ObjectMeta: named, Spec: batchv1.JobSpec{Suspend: &suspend, Template: podTemplate()}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := clients.BatchV1().Jobs(namespace).Create(ctx, job, create); err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: named, Data: map[string][]byte{"k": {0, 1, 2}, "empty": {}}}
	if made, err := clients.CoreV1().Secrets(namespace).Create(ctx, secret, create); err != nil || !bytes.Equal(made.Data["k"], secret.Data["k"]) {
		return fmt.Errorf("a secret is %v, %v", made, err)
	}
	now, holder := metav1.NewMicroTime(time.Unix(1700000000, 123456000)), "me"
	lease := &coordinationv1.Lease{ObjectMeta: named, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now}}
	if made, err := clients.CoordinationV1().Leases(namespace).Create(ctx, lease, create); err != nil || !made.Spec.RenewTime.Time.Equal(now.Time) {
		return fmt.Errorf("a lease is %v, %v", made, err)
	}
	role := &rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	if _, err := clients.RbacV1().Roles(namespace).Create(ctx, role, create); err != nil {
		return err
	}
	maps := clients.CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named, BinaryData: map[string][]byte{"b": {9}}}, create)
	if err != nil {
		return err
	}
	made.Data = map[string]string{"a": "1"}
	stale := made.DeepCopy()
	if made, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil || made.Data["a"] != "1" || made.BinaryData["b"][0] != 9 {
		return fmt.Errorf("an update is %v, %v", made, err)
	}
	if _, err = maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("a conflict is %v", err)
	}
	if _, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "Bad"}}, create); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a wrong name is %v", err)
	}
	status := err.(apierrors.APIStatus).Status()
	if len(status.Details.Causes) == 0 || status.Details.Causes[0].Field != "metadata.name" {
		return fmt.Errorf("the causes are %v", status.Details)
	}
	for i := range 3 {
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("page-%d", i)}}, create); err != nil {
			return err
		}
	}
	page, err := maps.List(ctx, metav1.ListOptions{Limit: 2})
	if err != nil || len(page.Items) != 2 || page.Continue == "" || page.RemainingItemCount == nil {
		return fmt.Errorf("a page is %v, %v", page, err)
	}
	if page, err = maps.List(ctx, metav1.ListOptions{Limit: 2, Continue: page.Continue}); err != nil || len(page.Items) != 2 {
		return fmt.Errorf("the next page is %v, %v", page, err)
	}
	if err := maps.Delete(ctx, "page-0", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if _, err := maps.Get(ctx, "page-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("not found is %v", err)
	}
	return nil
}

// sameAsText reads lists in both encodings: the objects are the same, and written again are the bytes that came.
func sameAsText(ctx context.Context, clients, asText kubernetes.Interface, namespace string) error {
	serializer := protobufserializer.NewSerializer(scheme.Scheme, scheme.Scheme)
	paths := map[string]rest.Interface{}
	texts := map[string]rest.Interface{}
	add := func(prefix string, binary, text rest.Interface, resources ...string) {
		for _, resource := range resources {
			paths[prefix+resource], texts[prefix+resource] = binary, text
		}
	}
	in := "namespaces/" + namespace + "/"
	add("/api/v1/"+in, clients.CoreV1().RESTClient(), asText.CoreV1().RESTClient(), "pods", "configmaps", "secrets", "serviceaccounts",
		"pods/wired", "configmaps/wired", "secrets/wired")
	add("/api/v1/", clients.CoreV1().RESTClient(), asText.CoreV1().RESTClient(), "namespaces", "services", "endpoints", "nodes")
	add("/apis/apps/v1/"+in, clients.AppsV1().RESTClient(), asText.AppsV1().RESTClient(), "deployments", "deployments/wired", "replicasets", "controllerrevisions")
	add("/apis/batch/v1/"+in, clients.BatchV1().RESTClient(), asText.BatchV1().RESTClient(), "jobs", "jobs/wired")
	add("/apis/coordination.k8s.io/v1/"+in, clients.CoordinationV1().RESTClient(), asText.CoordinationV1().RESTClient(), "leases", "leases/wired")
	add("/apis/rbac.authorization.k8s.io/v1/", clients.RbacV1().RESTClient(), asText.RbacV1().RESTClient(), "clusterroles", "clusterrolebindings", "roles")
	add("/apis/flowcontrol.apiserver.k8s.io/v1/", clients.FlowcontrolV1().RESTClient(), asText.FlowcontrolV1().RESTClient(), "flowschemas", "prioritylevelconfigurations")
	add("/apis/scheduling.k8s.io/v1/", clients.SchedulingV1().RESTClient(), asText.SchedulingV1().RESTClient(), "priorityclasses")
	add("/apis/discovery.k8s.io/v1/", clients.DiscoveryV1().RESTClient(), asText.DiscoveryV1().RESTClient(), "endpointslices")
	for path, client := range paths {
		// What the controllers change in between makes the two differ: asked again then.
		compare := func() error {
			came, err := client.Get().AbsPath(path).DoRaw(ctx)
			if err != nil {
				return err
			}
			object, _, err := serializer.Decode(came, nil, nil)
			if err != nil {
				return err
			}
			var again bytes.Buffer
			if err := serializer.Encode(object, &again); err != nil {
				return err
			}
			// Amounts of simulated nodes are as their maker writes them (1024Mi), which Go makes shorter (1Gi).
			if path != "/api/v1/nodes" && !bytes.Equal(again.Bytes(), came) {
				return fmt.Errorf("the bytes are others: %d come, %d are written", len(came), again.Len())
			}
			text, err := texts[path].Get().AbsPath(path).DoRaw(ctx)
			if err != nil {
				return err
			}
			other := object.DeepCopyObject()
			fresh, err := scheme.Scheme.New(object.GetObjectKind().GroupVersionKind())
			if err == nil {
				other = fresh
			}
			if err := json.Unmarshal(text, other); err != nil {
				return err
			}
			// Items of a list in JSON say what they are.
			if meta.IsListType(other) {
				err := meta.EachListItem(other, func(item runtime.Object) error {
					item.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
					return nil
				})
				if err != nil {
					return err
				}
			}
			if !apiequality.Semantic.DeepEqual(object, other) {
				return fmt.Errorf("the objects differ:\n%s\n%s", asJSON(object), asJSON(other))
			}
			return nil
		}
		err := compare()
		for range 5 {
			if err == nil {
				break
			}
			time.Sleep(200 * time.Millisecond)
			err = compare()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func asJSON(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func subresources(ctx context.Context, clients kubernetes.Interface, namespace string) error {
	deployments := clients.AppsV1().Deployments(namespace)
	scale, err := deployments.GetScale(ctx, "wired", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 0 || scale.Status.Selector == "" {
		return fmt.Errorf("a scale is %v, %v", scale, err)
	}
	seconds := int64(600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "wired"}}
	accounts := clients.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return err
	}
	token, err := accounts.CreateToken(ctx, "wired", request, metav1.CreateOptions{})
	if err != nil || token.Status.Token == "" || token.Status.ExpirationTimestamp.IsZero() {
		return fmt.Errorf("a token is %v, %v", token, err)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}
	reviewed, err := clients.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil || reviewed.Status.User.Username != "system:serviceaccount:"+namespace+":wired" || len(reviewed.Status.User.Extra) == 0 {
		return fmt.Errorf("a review is %v, %v", reviewed, err)
	}
	return nil
}

// follow watches, and keeps a cache.
func follow(ctx context.Context, clients kubernetes.Interface, namespace string) error {
	maps := clients.CoreV1().ConfigMaps(namespace)
	yes := true
	events, err := maps.Watch(ctx, metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		return err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		object, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			return fmt.Errorf("an event of %T: %v", event.Object, event.Object)
		}
		if event.Type == watch.Bookmark && object.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			break
		}
	}
	_, err = maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "999999999999"})
	if err == nil || !strings.Contains(err.Error(), "resource version") {
		return fmt.Errorf("a watch of what is to come is %v", err)
	}
	factory := clientinformers.NewSharedInformerFactoryWithOptions(clients, 0, clientinformers.WithNamespace(namespace))
	lister := factory.Core().V1().ConfigMaps().Lister()
	jobs := factory.Batch().V1().Jobs().Lister()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%v: not synced", kind)
		}
	}
	if _, err := jobs.Jobs(namespace).Get("wired"); err != nil {
		return err
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "followed"}, Data: map[string]string{"a": "1"}}
	if _, err := maps.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return err
	}
	return eventually(ctx, "the config map", func() (bool, error) {
		item, err := lister.ConfigMaps(namespace).Get("followed")
		return err == nil && item.Data["a"] == "1", nil
	})
}

// metadataOnly follows the metadata of built-in and of custom kinds.
func metadataOnly(ctx context.Context, config *rest.Config, namespace string) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := metadatainformer.NewSharedInformerFactory(client, 0)
	maps := factory.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})
	queues := factory.ForResource(schema.GroupVersionResource{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "clusterqueues"})
	maps.Informer()
	queues.Informer()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%v: not synced", kind)
		}
	}
	if _, err := maps.Lister().ByNamespace(namespace).Get("wired"); err != nil {
		return err
	}
	_, err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(namespace).Get(ctx, "wired", metav1.GetOptions{})
	return err
}

func discoverBinary(clients, asText kubernetes.Interface) error {
	groups, resources, err := clients.Discovery().ServerGroupsAndResources()
	if err != nil {
		return err
	}
	wantGroups, wantResources, err := asText.Discovery().ServerGroupsAndResources()
	if err != nil {
		return err
	}
	for _, lists := range [][]*metav1.APIResourceList{resources, wantResources} {
		slices.SortFunc(lists, func(a, b *metav1.APIResourceList) int { return strings.Compare(a.GroupVersion, b.GroupVersion) })
	}
	if !apiequality.Semantic.DeepEqual(groups, wantGroups) || !apiequality.Semantic.DeepEqual(resources, wantResources) {
		return fmt.Errorf("discovery differs:\n%s\n%s", asJSON(resources), asJSON(wantResources))
	}
	for _, path := range []string{"/api", "/apis", "/api/v1", "/apis/apps/v1", "/apis/batch"} {
		came, err := clients.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeProtobuf).DoRaw(context.Background())
		if err != nil || !bytes.HasPrefix(came, []byte("k8s\x00")) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
