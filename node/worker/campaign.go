package worker

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

type trackerProgress = tracker.Progress

const stateReplicate = tracker.StateReplicate

// earlyCampaign is a follower's plan to campaign without waiting for the
// election timeout, because its leader's connection broke. PreVote is on: a
// false alarm deposes nobody.
type earlyCampaign struct {
	on    bool
	ticks int // until the next try
	tries int // left
}

const (
	// campaignStagger is how many ticks each further voter waits, so that the
	// first one is done by then.
	campaignStagger = 3
	// campaignTries bounds the tries: another follower may hear of the broken
	// connection later and ignore the first ones.
	campaignTries = 3
	// downTicks is how long a broken connection counts.
	downTicks = 20
)

// peerDown: the connection to a node was refused or reset. Followers of
// leaders there forget them; the first live voter in map order campaigns at
// once, the others in turn.
func (w *Worker) peerDown(n NodeID) {
	if n == 0 || n == w.cfg.Node {
		return
	}
	w.down[n] = w.tick + downTicks
	campaigns := w.cfg.Limits.Campaigns
	for _, r := range w.replicas {
		if r.leading || r.lead == 0 || r.node(r.lead) != n || r.early.on {
			continue
		}
		rank, voter := 0, false
		for _, p := range r.peers {
			if p.Replica == r.id {
				voter = !p.Learner
				break
			}
			if _, down := w.down[p.Node]; !p.Learner && !down {
				rank++
			}
		}
		_ = r.rn.ForgetLeader()
		w.mark(r)
		if !voter {
			continue
		}
		r.early = earlyCampaign{on: true, ticks: rank * campaignStagger, tries: campaignTries}
		r.tryCampaign(&campaigns)
	}
}

// tryCampaign campaigns if it is this replica's turn and the worker's pace
// allows one more in this tick.
func (r *replica) tryCampaign(budget *int) {
	if r.early.ticks > 0 || *budget <= 0 {
		return
	}
	*budget--
	r.early.tries--
	r.early.ticks = 1
	_ = r.rn.Campaign()
	r.w.mark(r)
}

// ticked is what a replica does at every tick besides raft's own.
func (r *replica) ticked(campaigns *int) {
	if r.early.on {
		switch {
		case r.leading, r.lead != 0, r.early.tries <= 0:
			r.early = earlyCampaign{}
		case r.state == raft.StateCandidate:
			// Its election runs.
		default:
			r.early.ticks--
			r.tryCampaign(campaigns)
		}
	}
	r.checkDisk()
	if r.snapshotDue() {
		r.w.mark(r)
	}
}
