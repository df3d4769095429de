package entry

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// kept is a JSON object. The fields that T does not have are those of a later version. They
// stay as they are.
type kept[T any] struct {
	it    T
	other map[string]json.RawMessage
}

func (k *kept[T]) UnmarshalJSON(text []byte) error {
	if err := errors.Join(json.Unmarshal(text, &k.it), json.Unmarshal(text, &k.other)); err != nil {
		return err
	}
	known := reflect.TypeFor[T]()
	for i := range known.NumField() {
		name, _, _ := strings.Cut(known.Field(i).Tag.Get("json"), ",")
		maps.DeleteFunc(k.other, func(n string, _ json.RawMessage) bool { return strings.EqualFold(n, name) })
	}
	return nil
}

func (k kept[T]) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(&k.it)
	if err != nil || len(k.other) == 0 {
		return text, err
	}
	rest, err := json.Marshal(k.other)
	return slices.Concat(text[:len(text)-1], []byte(","), rest[1:]), err
}

// with adds to it the unknown fields of the first element of all for which same is true.
func with[T any](it T, all []kept[T], same func(T) bool) kept[T] {
	k := kept[T]{it: it}
	if i := slices.IndexFunc(all, func(old kept[T]) bool { return same(old.it) }); i >= 0 {
		k.other = all[i].other
	}
	return k
}

// wrap makes elements without unknown fields.
func wrap[T any](its []T) (all []kept[T]) {
	all = slices.Grow(all, len(its))
	for _, it := range its {
		all = append(all, kept[T]{it: it})
	}
	return all
}

// alone is the contrary of wrap. It returns false if an element has unknown fields.
func alone[T any](all []kept[T]) (its []T, ok bool) {
	its, ok = slices.Grow(its, len(all)), true
	for _, k := range all {
		its, ok = append(its, k.it), ok && len(k.other) == 0
	}
	return its, ok
}
