package checker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortise-lock/mortise/ops/history"
)

// parse reads a story, one event a line:
//
//	<time> <who> <verb> [#call] [lock] [key=value ...]
//
// who is c<n> (client n with the session s<n>), n<n> (a node) or - (nobody).
// Holders of a describe are holds=s1:5,s2:6 or holds=none; s1:5:shared shows
// another mode than was granted.
func parse(text string) ([]history.Event, error) {
	var events []history.Event
	asked := map[uint64]history.Event{}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 3 {
			return nil, fmt.Errorf("%q: want time, who, verb", line)
		}
		at, err := time.ParseDuration(f[0])
		if err != nil {
			return nil, err
		}
		e := history.Event{At: history.Time(at), Client: -1, Node: -1}
		who, _ := strconv.Atoi(f[1][1:])
		switch f[1][0] {
		case 'c':
			e.Client, e.Session = who, "s"+f[1][1:]
		case 'n':
			e.Node = who
		}
		args := map[string]string{}
		for _, a := range f[3:] {
			k, v, ok := strings.Cut(a, "=")
			switch {
			case ok:
				args[k] = v
			case strings.HasPrefix(a, "#"):
				if e.Call, err = strconv.ParseUint(a[1:], 10, 64); err != nil {
					return nil, err
				}
			default:
				e.Name = a
			}
		}
		number := func(k string) uint64 {
			n, _ := strconv.ParseUint(args[k], 0, 64)
			return n
		}
		duration := func(k string) history.Time {
			d, _ := time.ParseDuration(args[k])
			return history.Time(d)
		}
		e.Token, e.Seq, e.TTL = number("token"), number("seq"), duration("ttl")
		if s := args["session"]; s != "" {
			e.Session = s
		}
		was := asked[e.Call]
		answer := func(op history.Op, o history.Outcome) {
			e.Kind, e.Op, e.Outcome, e.Name = history.Return, op, o, was.Name
			e.Mode, e.Permits, e.Limit = was.Mode, was.Permits, was.Limit
		}
		switch f[2] {
		case "opens":
			e.Kind = history.SessionOpened
		case "asks":
			e.Kind, e.Op, e.Mode = history.Invoke, history.Acquire, history.Exclusive
			if args["mode"] == "shared" {
				e.Mode = history.Shared
			}
			if p, l, ok := strings.Cut(args["permits"], "/"); ok {
				a, _ := strconv.Atoi(p)
				b, _ := strconv.Atoi(l)
				e.Mode, e.Permits, e.Limit = history.Counted, uint32(a), uint32(b)
			}
		case "waits":
			e.Kind = history.Waiting
		case "granted":
			answer(history.Acquire, history.OK)
		case "busy":
			answer(history.Acquire, history.Busy)
		case "gaveup":
			answer(history.Acquire, history.Cancelled)
		case "unsure":
			answer(history.Acquire, history.OutcomeUnknown)
		case "believes":
			e.Kind, e.Name, e.Mode, e.Permits, e.Limit = history.BeliefBegins, was.Name, was.Mode, was.Permits, was.Limit
		case "stops":
			e.Kind, e.Name = history.BeliefEnds, was.Name
		case "releases":
			e.Kind, e.Op = history.Invoke, history.Release
		case "released":
			answer(history.Release, history.OK)
			e.Token = was.Token
		case "cancels":
			e.Kind, e.Op, e.Of = history.Invoke, history.Cancel, number("of")
		case "cancelled":
			answer(history.Cancel, history.OK)
		case "looks":
			e.Kind, e.Op = history.Invoke, history.Describe
		case "sees":
			answer(history.Describe, history.OK)
			for h := range strings.SplitSeq(args["holds"], ",") {
				s, t, ok := strings.Cut(h, ":")
				if !ok {
					continue
				}
				t, mode, _ := strings.Cut(t, ":")
				n, _ := strconv.ParseUint(t, 10, 64)
				holder := history.Holder{Session: s, Client: s, Token: n}
				if mode == "shared" {
					holder.Mode = history.Shared
				}
				e.Holders = append(e.Holders, holder)
			}
		case "writes":
			e.Kind, e.Accepted, e.Unchecked = history.Write, args["accepted"] == "yes", args["unchecked"] == "yes"
		case "pauses":
			e.Kind = history.Paused
		case "resumes":
			e.Kind = history.Resumed
		case "dies":
			e.Kind = history.ClientDied
		case "over":
			e.Kind = history.SessionOver
		case "applied":
			e.Kind, e.Shard, e.Index, e.Hash = history.Applied, uint32(number("shard")), number("index"), number("hash")
		case "fault":
			e.Kind = history.Fault
		case "healed":
			e.Kind = history.Healed
		case "served":
			e.Kind, e.Shard = history.Served, uint32(number("shard"))
		case "left":
			e.Kind, e.Count, e.Note = history.Baseline, int64(number("count")), args["what"]
		case "forced":
			e.Kind = history.Forced
		case "ends":
			continue
		default:
			return nil, fmt.Errorf("%q: no such verb", f[2])
		}
		if e.Kind == history.Invoke && asked[e.Call].Kind == 0 {
			asked[e.Call] = e
		}
		events = append(events, e)
	}
	// Describes show the modes of the acquires whose tokens they show.
	for i := range events {
		for j := range events[i].Holders {
			h := &events[i].Holders[j]
			if h.Mode != 0 {
				continue
			}
			k := slices.IndexFunc(events, func(e history.Event) bool {
				return e.Kind == history.Return && e.Op == history.Acquire && e.Token == h.Token
			})
			if k >= 0 {
				h.Mode, h.Permits = events[k].Mode, events[k].Permits
			} else {
				h.Mode = history.Exclusive
			}
		}
	}
	return events, nil
}
