package gateway

import (
	"sync"

	"github.com/mortise-lock/mortise/gateway/core"
	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	nodev1 "github.com/mortise-lock/mortise/proto/mortise/node/v1"
)

const (
	// maxStreamBacklog: events that may wait for a client that does not read.
	maxStreamBacklog = 1 << 16
	// maxFrameEvents bounds one frame to a client.
	maxFrameEvents = 2048
	// maxFrameRequests bounds one frame to a node.
	maxFrameRequests = 4096
)

// clientOutbox gathers what the loop has for one client until its writer takes
// it.
type clientOutbox struct {
	mu      sync.Mutex
	events  []*lockv1.SessionEvent
	time    uint64
	beat    bool // a frame is due even without events
	end     bool
	failure *lockv1.Failure
	wake    chan struct{}
	slow    chan struct{} // woken when the client reads too slowly to go on
}

func newClientOutbox() *clientOutbox {
	return &clientOutbox{wake: make(chan struct{}, 1), slow: make(chan struct{}, 1)}
}

// put adds a frame.
func (o *clientOutbox) put(s *core.StreamSend) {
	o.mu.Lock()
	o.events = append(o.events, s.Events...)
	o.time, o.beat = s.Time, true
	if s.End {
		o.end, o.failure = true, s.Failure
	}
	slow := len(o.events) > maxStreamBacklog
	o.mu.Unlock()
	if slow {
		wake(o.slow)
	}
	wake(o.wake)
}

// take returns the next frame to write, if any, and whether the stream is over
// after it.
func (o *clientOutbox) take() (f *lockv1.SessionResponse, end bool, failure *lockv1.Failure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.beat {
		f = &lockv1.SessionResponse{ServerTimeMs: o.time, Events: o.events}
		if len(o.events) > maxFrameEvents {
			f.Events, o.events = o.events[:maxFrameEvents:maxFrameEvents], o.events[maxFrameEvents:]
			return f, false, nil
		}
		o.events, o.beat = nil, false
	}
	return f, o.end, o.failure
}

// nodeOutbox gathers what the loop has for one node.
type nodeOutbox struct {
	mu       sync.Mutex
	requests []*nodev1.Request
	renew    []*nodev1.Renew
	echo     uint64
	beat     bool
	wake     chan struct{}
}

func newNodeOutbox() *nodeOutbox { return &nodeOutbox{wake: make(chan struct{}, 1)} }

func (o *nodeOutbox) put(s *core.NodeSend) {
	o.mu.Lock()
	if o.requests == nil {
		o.requests = s.Requests // the loop gives it away
	} else {
		o.requests = append(o.requests, s.Requests...)
	}
	o.renew = append(o.renew, s.Renew...)
	o.echo, o.beat = s.Echo, true
	o.mu.Unlock()
	wake(o.wake)
}

func (o *nodeOutbox) take() *nodev1.ExchangeRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.beat {
		return nil
	}
	f := &nodev1.ExchangeRequest{EchoMs: o.echo, Requests: o.requests}
	if len(o.renew) > 0 {
		f.Renew = &nodev1.RenewBatch{Renewals: o.renew}
		o.renew = nil
	}
	if len(o.requests) > maxFrameRequests {
		f.Requests, o.requests = o.requests[:maxFrameRequests:maxFrameRequests], o.requests[maxFrameRequests:]
		return f
	}
	o.requests, o.beat = nil, false
	return f
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
