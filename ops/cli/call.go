package cli

import (
	"context"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// call asks one endpoint after the other until one answers with anything but
// UNAVAILABLE. No request that was passed on is repeated elsewhere unless it
// changes nothing the second time; all of ours do.
func call[R any](ctx context.Context, a *app, doing string, do func(context.Context, *grpc.ClientConn) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var r R
	var err error
	for i, endpoint := range a.endpoints {
		var cc *grpc.ClientConn
		if cc, err = dial(endpoint); err != nil {
			continue
		}
		// A dead gateway may not answer at all: leave time for the others.
		one, stop := ctx, context.CancelFunc(func() {})
		if left := len(a.endpoints) - i; left > 1 {
			one, stop = context.WithTimeout(ctx, a.timeout/2)
		}
		r, err = do(one, cc)
		stop()
		cc.Close()
		if c := status.Code(err); ctx.Err() != nil || (c != codes.Unavailable && c != codes.DeadlineExceeded) {
			break
		}
	}
	return r, fromRPC(err, doing, a.endpoints)
}

func dial(endpoint string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
