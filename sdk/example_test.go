package mortise_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	mortise "github.com/mortise-lock/mortise/sdk"
)

func Example() {
	ctx := context.Background()
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{"127.0.0.1:7420"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	grant, err := client.Lock(ctx, "invoice/INV-55102")
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)
	fmt.Println("token", grant.Token())
}

func ExampleClient_Do() {
	ctx := context.Background()
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{"127.0.0.1:7420"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "report/daily", func(ctx context.Context, g *mortise.Grant) error {
		// ctx ends when protection ends.
		return makeReport(ctx, g.Token())
	})
	if lost, ok := errors.AsType[*mortise.LostError](err); ok {
		log.Printf("lost the lock while working: %v", lost.Reason)
	}
}

func ExampleClient_TryLock() {
	ctx := context.Background()
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{"127.0.0.1:7420"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	grant, err := client.TryLock(ctx, "cleanup", mortise.WithMaxHold(time.Minute))
	if held, ok := errors.AsType[*mortise.HeldError](err); ok {
		fmt.Println("busy:", held.Holder.Client)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)
}

func ExampleClient_Acquire() {
	ctx := context.Background()
	client, err := mortise.Open(ctx, mortise.Config{Endpoints: []string{"127.0.0.1:7420"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	// At most ten downloads at a time over the whole fleet.
	grant, err := client.Acquire(ctx, "downloads", mortise.Permits{Take: 1, Of: 10})
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)
}

func makeReport(context.Context, mortise.Token) error { return nil }
