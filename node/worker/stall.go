package worker

// stalledFor is how long the oldest append of this replica has been waiting
// for its sync.
func (r *replica) stalledFor() Time {
	if len(r.syncing) == 0 {
		return 0
	}
	return r.w.now - r.syncing[0]
}

// checkDisk gives up the leadership of a shard whose appends don't become
// durable here: followers may go on committing, but nothing would apply on
// this leader. First by a transfer, which needs no disk of ours; if nobody took
// over within an election timeout, by falling silent: then CheckQuorum deposes
// this leader and the followers elect another one.
func (r *replica) checkDisk() {
	if !r.leading {
		return
	}
	if r.stalledFor() < Time(r.w.cfg.DiskStall) {
		if r.giveUp != 0 {
			r.giveUp, r.muted = 0, false
			r.w.mark(r)
		}
		return
	}
	now := r.w.now
	switch {
	case r.giveUp == 0:
		r.giveUp = now
		r.w.counters.DiskStalls++
		r.w.log(levelWarn, r, "disk is slow: giving up the leadership", "stalled_ms", int64(r.stalledFor())/1e6)
		r.giveUpTransfer()
		if to := r.bestTarget(0); to != 0 {
			r.rn.TransferLeader(to)
		}
		r.w.mark(r)
	case now-r.giveUp > r.w.electionTimeout():
		r.muted = true
	}
}

// electionTimeout is the shortest one.
func (w *Worker) electionTimeout() Time {
	return Time(w.cfg.ElectionTick) * Time(w.cfg.Tick)
}
