// Judges histories of logs by porcupine, a linearizability checker: is there one order of all
// operations, each between its call and its return, in which every client saw what it saw?
//
//	judge HISTORY.json ...
//
// Prints a line of JSON for each file: {"file", "operations", "verdict"}, where the verdict is
// "ok", "illegal" or "unknown" (no answer in time). Exit code 1 unless all are "ok".
//
// Two kinds of objects are modelled, each history has some of both (README.md):
// the root, which holds the id of a log or none; and each log, by its id.
package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const patience = 60 * time.Second

type record struct {
	Partition int
	Offset    int
	Key       string
	Value     *string
}

type operation struct {
	Client  int             `json:"client"`
	Op      string          `json:"op"`
	Log     string          `json:"log"`
	Input   json.RawMessage `json:"input"`
	Outcome string          `json:"outcome"`
	Output  json.RawMessage `json:"output"`
	Call    int64           `json:"call"`
	Return  int64           `json:"return"`
}

type appended struct {
	Rows   []record `json:"rows"`
	Repeat bool     `json:"repeat"` // under a sequence: the same again has no effect
}

// What the model gets: one operation, decoded, and the object that it is about.
type step struct {
	object, op, outcome, log string
	end                      int64
	append                   appended
	partition                int
	key                      string
	offsets                  map[int][2]int
	ends                     map[int]int
	rows                     []record
	table                    map[string]string
	value                    *string
	id                       string
}

const root = "root"

func main() {
	code := 0
	for _, path := range os.Args[1:] {
		history, err := read(path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			os.Exit(2)
		}
		verdict := porcupine.CheckOperationsTimeout(model, history, patience)
		if verdict != porcupine.Ok {
			code = 1
		}
		line := map[string]any{"file": path, "operations": len(history)}
		line["verdict"] = map[porcupine.CheckResult]string{
			porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "unknown",
		}[verdict]
		if verdict == porcupine.Illegal {
			line["objects"] = illegal(history)
		}
		told, _ := json.Marshal(line)
		fmt.Println(string(told))
	}
	os.Exit(code)
}

// Which objects have no such order.
func illegal(history []porcupine.Operation) []string {
	found := []string{}
	for _, part := range model.Partition(history) {
		if porcupine.CheckOperationsTimeout(model, part, patience) == porcupine.Illegal {
			found = append(found, part[0].Input.(step).object)
		}
	}
	return found
}

func read(path string) ([]porcupine.Operation, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var given []operation
	if err := json.Unmarshal(data, &given); err != nil {
		return nil, err
	}
	var history []porcupine.Operation
	for _, op := range given {
		steps, err := stepsOf(op)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op.Op, err)
		}
		for _, s := range steps {
			history = append(history, porcupine.Operation{
				ClientId: op.Client, Input: s, Call: op.Call, Output: s.outcome, Return: s.end,
			})
		}
	}
	return history, nil
}

// A deletion is three steps: the root lets go of the log; from some moment on clients may be told
// that it is gone; and from some later one on, nothing is acknowledged any more.
func stepsOf(op operation) ([]step, error) {
	s := step{object: op.Log, op: op.Op, outcome: op.Outcome, log: op.Log, end: op.Return}
	var to any
	ok := op.Outcome == "ok"
	switch op.Op {
	case "append":
		to = &s.offsets
		if err := json.Unmarshal(op.Input, &s.append); err != nil {
			return nil, err
		}
		if op.Outcome == "gone" {
			// Until its author notices, others that still have the deleted log open may see it.
			maybe := s
			maybe.outcome, maybe.end = "unknown", math.MaxInt64
			return []step{s, maybe}, nil
		}
	case "read":
		to = &s.rows
		if err := json.Unmarshal(op.Input, &s.partition); err != nil {
			return nil, err
		}
	case "get":
		to = &s.value
		if err := json.Unmarshal(op.Input, &s.key); err != nil {
			return nil, err
		}
	case "table":
		to = &s.table
	case "ends":
		to = &s.ends
	case "open", "create":
		s.object = root
		s.id = op.Log
		return []step{s}, nil
	case "delete":
		atRoot, begin, end := s, s, s
		atRoot.object, begin.op, end.op = root, "delete begins", "delete ends"
		return []step{atRoot, begin, end}, nil
	default:
		return nil, fmt.Errorf("not known")
	}
	if ok {
		if err := json.Unmarshal(op.Output, to); err != nil {
			return nil, err
		}
	}
	return []step{s}, nil
}

// The state of the root is an id, "" for none, or unsaid: that of a creation whose author died.
// The state of a log is what was appended, and how far its deletion is.
type state struct {
	id      string
	deleted int // 0 no, 1 begun, 2 done
	parts   [][]record
}

const unsaid = "?"

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		names := []string{}
		for _, op := range history {
			name := op.Input.(step).object
			if _, there := by[name]; !there {
				names = append(names, name)
			}
			by[name] = append(by[name], op)
		}
		parts := [][]porcupine.Operation{}
		for _, name := range names {
			parts = append(parts, by[name])
		}
		return parts
	},
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		was, s := before.(state), input.(step)
		if s.object == root {
			return atRoot(was, s)
		}
		return inLog(was, s)
	},
	Equal: func(a, b any) bool {
		one, other := a.(state), b.(state)
		return one.id == other.id && one.deleted == other.deleted &&
			slices.EqualFunc(one.parts, other.parts, func(a, b []record) bool {
				return slices.EqualFunc(a, b, same)
			})
	},
	Hash: func(of any) uint64 {
		s, hash := of.(state), fnv.New64a()
		fmt.Fprint(hash, s.id, s.deleted)
		for _, part := range s.parts {
			hash.Write([]byte{0})
			for _, r := range part {
				hash.Write([]byte(r.Key))
				if r.Value != nil {
					hash.Write([]byte(*r.Value))
				}
			}
		}
		return hash.Sum64()
	},
}

func atRoot(was state, s step) (bool, state) {
	switch {
	case s.op == "delete":
		if was.id == s.log || was.id == unsaid {
			return true, state{}
		}
		return true, was // Finishes what another began.
	case s.op == "create" && s.outcome == "ok":
		return was.id == "", state{id: s.id}
	case s.op == "create": // It may have created one, and did not say which.
		if was.id == "" {
			return true, state{id: unsaid}
		}
		return true, was
	case s.outcome == "gone": // No log was found.
		return was.id == "", was
	case s.outcome != "ok":
		return true, was
	case was.id == unsaid:
		return true, state{id: s.id}
	}
	return was.id == s.id, was
}

func inLog(was state, s step) (bool, state) {
	if s.outcome == "gone" {
		return was.deleted > 0, was
	}
	switch s.op {
	case "delete begins":
		return true, state{deleted: max(was.deleted, 1), parts: was.parts}
	case "delete ends":
		return was.deleted > 0, state{deleted: 2, parts: was.parts}
	case "append":
		return added(was, s)
	}
	// A handle that only polls may not notice for ten seconds that files go (COMMIT.md, §1).
	if s.outcome != "ok" || was.deleted > 0 {
		return true, was
	}
	switch s.op {
	case "read":
		return sees(was.part(s.partition), s.rows), was
	case "table":
		return showsAll(was, s.table), was
	case "get":
		last := was.last(s.key)
		if last == nil || last.Value == nil || s.value == nil {
			return (last == nil || last.Value == nil) && s.value == nil, was
		}
		return *last.Value == *s.value, was
	default: // ends
		for p, end := range s.ends {
			if len(was.part(p)) != end {
				return false, was
			}
		}
		return true, was
	}
}

func added(was state, s step) (bool, state) {
	if s.append.Repeat && was.has(s.append.Rows) {
		return s.outcome != "ok" || was.hasAt(s.append.Rows, s.offsets), was
	}
	if was.deleted == 2 {
		return s.outcome != "ok", was
	}
	is := state{deleted: was.deleted, parts: slices.Clone(was.parts)}
	for _, r := range s.append.Rows {
		for len(is.parts) <= r.Partition {
			is.parts = append(is.parts, nil)
		}
		old := is.parts[r.Partition]
		is.parts[r.Partition] = append(slices.Clip(old), r)
	}
	if s.outcome == "ok" {
		for p, told := range s.offsets {
			if len(was.part(p)) != told[0] || len(is.part(p)) != told[1] {
				return false, was
			}
		}
		if len(s.offsets) == 0 && len(s.append.Rows) > 0 && !s.append.Repeat {
			return false, was
		}
	}
	return true, is
}

// A reader sees each record at its offset, but those that a later one of their key made dead, or
// tombstones, which may have been cleaned.
func sees(part []record, rows []record) bool {
	seen := map[int]bool{}
	before := -1
	for _, r := range rows {
		if r.Offset <= before || r.Offset >= len(part) || !same(part[r.Offset], r) {
			return false
		}
		before = r.Offset
		seen[r.Offset] = true
	}
	last := map[string]int{}
	for i, r := range part {
		last[r.Key] = i
	}
	for _, i := range last {
		if part[i].Value != nil && !seen[i] {
			return false
		}
	}
	return true
}

func showsAll(was state, table map[string]string) bool {
	count := 0
	keys := map[string]*string{}
	for _, part := range was.parts {
		for _, r := range part {
			keys[r.Key] = r.Value
		}
	}
	for key, value := range keys {
		if value == nil {
			continue
		}
		count++
		if shown, there := table[key]; !there || shown != *value {
			return false
		}
	}
	return count == len(table)
}

func (s state) part(p int) []record {
	if p < len(s.parts) {
		return s.parts[p]
	}
	return nil
}

func (s state) last(key string) *record {
	for _, part := range s.parts {
		for i := len(part) - 1; i >= 0; i-- {
			if part[i].Key == key {
				return &part[i]
			}
		}
	}
	return nil
}

// Whether these rows were appended before; the first one has a value, which no other append has.
func (s state) has(rows []record) bool {
	return slices.ContainsFunc(s.part(rows[0].Partition), func(r record) bool {
		return same(r, rows[0])
	})
}

func (s state) hasAt(rows []record, told map[int][2]int) bool {
	if len(told) == 0 {
		return true // It was told that it is there, and not where.
	}
	at := map[int]int{}
	for p, range_ := range told {
		at[p] = range_[0]
	}
	for _, r := range rows {
		part := s.part(r.Partition)
		if at[r.Partition] >= len(part) || !same(part[at[r.Partition]], r) {
			return false
		}
		at[r.Partition]++
	}
	return true
}

func same(a, b record) bool {
	if a.Key != b.Key || (a.Value == nil) != (b.Value == nil) {
		return false
	}
	return a.Value == nil || *a.Value == *b.Value
}

// Records are lists: [partition, offset, key, value].
func (r *record) UnmarshalJSON(data []byte) error {
	fields := []any{&r.Partition, &r.Offset, &r.Key, &r.Value}
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	if len(fields) != 4 {
		return fmt.Errorf("a record with %s fields", strconv.Itoa(len(fields)))
	}
	return nil
}
