// Writes crates/berth-apimachinery/data/protobuf-fields.txt: the number and type of each field of
// Kubernetes' kinds in their protobuf encoding, and whether a zero value is written, there and in
// JSON. The program reads the tags and types of the published Go types. The .proto files do not
// suffice: a zero value is written if the Go field is a pointer.
//
//	cd xtask/protobuf-fields && go run . > ../../crates/berth-apimachinery/data/protobuf-fields.txt
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	discoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	registrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Types whose JSON is no object, or whose message has no fields of its own.
var special = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():                         "Quantity",
	reflect.TypeFor[intstr.IntOrString]():                        "IntOrString",
	reflect.TypeFor[metav1.Time]():                               "Time",
	reflect.TypeFor[metav1.MicroTime]():                          "MicroTime",
	reflect.TypeFor[metav1.Duration]():                           "Duration",
	reflect.TypeFor[metav1.FieldsV1]():                           "Raw",
	reflect.TypeFor[runtime.RawExtension]():                      "Raw",
	reflect.TypeFor[extensionsv1.JSON]():                         "Raw",
	reflect.TypeFor[extensionsv1.JSONSchemaPropsOrArray]():       "SchemaOrArray",
	reflect.TypeFor[extensionsv1.JSONSchemaPropsOrBool]():        "SchemaOrBool",
	reflect.TypeFor[extensionsv1.JSONSchemaPropsOrStringArray](): "SchemaOrStrings",
}

// Kinds that every group has, and that belong to none.
func isMeta(t reflect.Type) bool { return strings.HasPrefix(t.PkgPath(), "k8s.io/apimachinery/") }

var lines = map[string]string{}

func main() {
	groups := map[string]string{}
	add := func(groupVersion string, t reflect.Type) {
		name := message(t)
		groups[groupVersion] = name[:strings.LastIndex(name, ".")]
	}
	all := runtime.NewScheme()
	for _, addTo := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, extensionsv1.AddToScheme, registrationv1.AddToScheme, discoveryv2.AddToScheme, discoveryv2beta1.AddToScheme,
	} {
		if err := addTo(all); err != nil {
			panic(err)
		}
	}
	for kind, t := range all.AllKnownTypes() {
		generallyAvailable := !strings.Contains(kind.Version, "alpha") && !strings.Contains(kind.Version, "beta")
		served := generallyAvailable || kind.Group == discoveryv2beta1.GroupName
		if served && kind.Version != runtime.APIVersionInternal && !isMeta(t) && kind.Group != "imagepolicy.k8s.io" {
			add(kind.GroupVersion().String(), t)
		}
	}
	for _, object := range []any{
		metav1.APIGroup{}, metav1.APIGroupList{}, metav1.APIResourceList{}, metav1.APIVersions{}, metav1.CreateOptions{},
		metav1.DeleteOptions{}, metav1.GetOptions{}, metav1.ListOptions{}, metav1.PatchOptions{}, metav1.UpdateOptions{},
		metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadataList{}, metav1.Status{},
	} {
		add("meta.k8s.io/v1", reflect.TypeOf(object))
	}
	add("meta.k8s.io/v1beta1", reflect.TypeFor[metav1beta1.PartialObjectMetadataList]())

	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, groupVersion := range sorted(groups) {
		fmt.Fprintf(out, "@%s %s\n", groupVersion, groups[groupVersion])
	}
	for _, name := range sorted(lines) {
		fmt.Fprintf(out, "%s %s\n", name, lines[name])
	}
}

func sorted[V any](of map[string]V) []string {
	var keys []string
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// message returns the name of a type's message, such as `core.v1.Pod`, and adds its line.
func message(t reflect.Type) string {
	steps := strings.Split(t.PkgPath(), "/")
	name := strings.Join(append(steps[len(steps)-2:], t.Name()), ".")
	if _, known := lines[name]; known {
		return name
	}
	lines[name] = ""
	type field struct {
		number int
		text   string
	}
	var fields []field
	for i := range t.NumField() {
		it := t.Field(i)
		tag, tagged := it.Tag.Lookup("protobuf")
		if !tagged || tag == "-" {
			continue
		}
		parts := strings.Split(tag, ",")
		number, err := strconv.Atoi(parts[1])
		if err != nil {
			panic(fmt.Sprint(name, " ", it.Name, " ", tag))
		}
		json := strings.Split(it.Tag.Get("json"), ",")
		shown := ""
		if !strings.Contains(it.Tag.Get("json"), "omit") {
			shown = "!"
		}
		// An embedded struct has no level of its own in JSON.
		fields = append(fields, field{number, fmt.Sprintf("%d=%s:%s%s", number, json[0], typed(it.Type), shown)})
	}
	sort.Slice(fields, func(i, j int) bool { return fields[i].number < fields[j].number })
	var texts []string
	for _, it := range fields {
		texts = append(texts, it.text)
	}
	// Messages of the same package by their last name.
	lines[name] = strings.ReplaceAll(strings.Join(texts, ","), name[:strings.LastIndex(name, ".")], "")
	return name
}

// typed returns a field's type: `?` marks a pointer, `*` the items of a list, `%` the values of a map.
func typed(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return "?" + single(t.Elem())
	case t.Kind() == reflect.Map:
		if t.Key().Kind() != reflect.String {
			panic(t)
		}
		return "%" + single(t.Elem())
	case t.Kind() == reflect.Slice && (isMessage(t) || t.Elem().Kind() == reflect.Uint8):
		// Nil is not written.
		return "?" + single(t)
	case t.Kind() == reflect.Slice:
		elem := t.Elem()
		if elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
		return "*" + single(elem)
	}
	return single(t)
}

// isMessage returns true for a list that is a message of its own: lists of verbs, and the extra
// values of a user.
func isMessage(t reflect.Type) bool {
	_, is := reflect.PointerTo(t).MethodByName("MarshalToSizedBuffer")
	return is
}

func single(t reflect.Type) string {
	if name, is := special[t]; is {
		return name
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint8, reflect.Uint32, reflect.Uint64:
		return "int"
	case reflect.Float64:
		return "double"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if !isMessage(t) || t.Elem().Kind() != reflect.String {
			panic(t)
		}
		return "List"
	case reflect.Struct:
		return message(t)
	}
	panic(t)
}
