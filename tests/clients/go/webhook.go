package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// marker is a webhook as operators write them: it defaults config maps and refuses some.
type marker struct{ decoder admission.Decoder }

func (m *marker) Handle(_ context.Context, request admission.Request) admission.Response {
	var object corev1.ConfigMap
	if err := m.decoder.Decode(request, &object); err != nil {
		return admission.Errored(400, err)
	}
	if object.Data["refuse"] == "me" {
		return admission.Denied("as asked")
	}
	object.Data = map[string]string{"marked": request.UserInfo.Username}
	changed, err := json.Marshal(object)
	if err != nil {
		return admission.Errored(500, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

// serving makes a certificate for loopback in a folder; returns the folder and the authority that signed it.
func serving() (string, []byte, error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook-ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "webhook"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, err
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return "", nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, authorityKey)
	if err != nil {
		return "", nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", nil, err
	}
	folder, err := os.MkdirTemp("", "webhook")
	if err != nil {
		return "", nil, err
	}
	files := map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: secret},
	}
	for name, block := range files {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return "", nil, err
		}
	}
	return folder, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root}), nil
}

// freePort is a port on which no process listens now.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// webhooks is the manager's webhook server and what trusts it.
type webhooks struct {
	server    webhook.Server
	port      int
	authority []byte
}

func newWebhooks() (*webhooks, error) {
	folder, authority, err := serving()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: folder})
	return &webhooks{server, port, authority}, nil
}

func (w *webhooks) register(manager ctrl.Manager) {
	// Asking for the server is what makes the manager run it.
	manager.GetWebhookServer().Register("/mark", &webhook.Admission{Handler: &marker{admission.NewDecoder(manager.GetScheme())}})
}

// check installs the configuration, makes objects, and takes the configuration away.
func (w *webhooks) check(ctx context.Context, plain client.Client) error {
	url := fmt.Sprintf("https://127.0.0.1:%d/mark", w.port)
	fail, none := admissionv1.Fail, admissionv1.SideEffectClassNone
	configuration := &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "go-manager"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "mark.go-manager.test", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none,
			ClientConfig:   admissionv1.WebhookClientConfig{URL: &url, CABundle: w.authority},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mark": "me"}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	if err := plain.Create(ctx, configuration); err != nil {
		return err
	}
	defer plain.Delete(context.Background(), configuration)
	object := func(name string, data map[string]string) *corev1.ConfigMap {
		labels := map[string]string{"mark": "me"}
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: managerNamespace, Labels: labels}, Data: data}
	}
	// A new configuration may take a moment to be looked at.
	made := 0
	if err := eventually(ctx, "the webhook's mark", func() (bool, error) {
		made++
		marked := object(fmt.Sprintf("marked-%d", made), nil)
		err := plain.Create(ctx, marked)
		return err == nil && marked.Data["marked"] != "", err
	}); err != nil {
		return err
	}
	if err := plain.Create(ctx, object("refused", map[string]string{"refuse": "me"})); err == nil {
		return fmt.Errorf("the webhook's refusal was not heard")
	}
	return nil
}
