package gateway

import (
	"context"
	"sync"
	"time"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connCache keeps connections for calls that are passed on to nodes.
type connCache struct {
	g  *Gateway
	mu sync.Mutex
	m  map[string]*grpc.ClientConn
}

func (c *connCache) get(addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cc := c.m[addr]; cc != nil {
		return cc, nil
	}
	cc, err := c.g.dial(addr)
	if err != nil {
		return nil, err
	}
	if c.m == nil {
		c.m = map[string]*grpc.ClientConn{}
	}
	c.m[addr] = cc
	return cc, nil
}

func (c *connCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cc := range c.m {
		cc.Close()
	}
	c.m = nil
}

// placementProxy offers PlacementService: the map from its own copy, the rest
// from whichever node answers.
type placementProxy struct {
	placementv1.UnimplementedPlacementServiceServer
	g *Gateway
}

// pass calls one node after the other until one is reached.
func pass[R any](ctx context.Context, g *Gateway, call func(context.Context, placementv1.PlacementServiceClient) (R, error)) (r R, err error) {
	err = status.Error(codes.Unavailable, "no node was reached")
	for _, addr := range g.nodeAddresses() {
		cc, e := g.conns.get(addr)
		if e != nil {
			err = e
			continue
		}
		if r, err = call(ctx, placementv1.NewPlacementServiceClient(cc)); err == nil || ctx.Err() != nil {
			return r, err
		}
		if c := status.Code(err); c != codes.Unavailable && c != codes.Unimplemented {
			return r, err
		}
	}
	return r, err
}

// initPatience bounds an Init whose caller set no deadline.
const initPatience = 2 * time.Minute

func (p *placementProxy) Init(ctx context.Context, r *placementv1.InitRequest) (*placementv1.InitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, initPatience)
	defer cancel()
	return pass(ctx, p.g, func(ctx context.Context, c placementv1.PlacementServiceClient) (*placementv1.InitResponse, error) {
		return c.Init(ctx, r)
	})
}

func (p *placementProxy) GetMap(ctx context.Context, r *placementv1.GetMapRequest) (*placementv1.GetMapResponse, error) {
	if m, _ := p.g.maps.get(); m != nil {
		return &placementv1.GetMapResponse{Map: m}, nil
	}
	return pass(ctx, p.g, func(ctx context.Context, c placementv1.PlacementServiceClient) (*placementv1.GetMapResponse, error) {
		return c.GetMap(ctx, r)
	})
}

func (p *placementProxy) WatchMap(r *placementv1.WatchMapRequest, stream placementv1.PlacementService_WatchMapServer) error {
	after := r.AfterGeneration
	for {
		m, changed := p.g.maps.get()
		if m != nil && m.Generation > after {
			if err := stream.Send(&placementv1.WatchMapResponse{Map: m}); err != nil {
				return err
			}
			after = m.Generation
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-p.g.ctx.Done():
			return status.Error(codes.Unavailable, "this gateway is stopping")
		}
	}
}

func (p *placementProxy) ClusterStatus(ctx context.Context, r *placementv1.ClusterStatusRequest) (*placementv1.ClusterStatusResponse, error) {
	return pass(ctx, p.g, func(ctx context.Context, c placementv1.PlacementServiceClient) (*placementv1.ClusterStatusResponse, error) {
		return c.ClusterStatus(ctx, r)
	})
}

func (p *placementProxy) TransferLeader(ctx context.Context, r *placementv1.TransferLeaderRequest) (*placementv1.TransferLeaderResponse, error) {
	return pass(ctx, p.g, func(ctx context.Context, c placementv1.PlacementServiceClient) (*placementv1.TransferLeaderResponse, error) {
		return c.TransferLeader(ctx, r)
	})
}
