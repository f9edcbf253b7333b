// Command grpcclient is a real gRPC client for the tests in test/e2e/lab. It is
// a module of its own, so that fy needs none of what it needs.
//
//	grpcclient HOST:PORT
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: grpcclient HOST:PORT")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := echo(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "grpcclient:", err)
		os.Exit(1)
	}
}

// echo calls a server that sends back what it gets.
func echo(ctx context.Context, target string) error {
	// The system's roots, which SSL_CERT_FILE names in a box.
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(nil)), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		return err
	}
	defer conn.Close()

	sent := make([]byte, 100_000)
	var got []byte
	if err := conn.Invoke(ctx, "/echo.Echo/Unary", &sent, &got); err != nil {
		return fmt.Errorf("unary: %w", err)
	}
	if len(got) != len(sent) {
		return fmt.Errorf("unary: sent %d bytes, got %d", len(sent), len(got))
	}
	fmt.Println("unary ok")

	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/echo.Echo/Stream")
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	const messages = 20
	for i := range messages {
		out := fmt.Appendf(nil, "message %d", i)
		if err := s.SendMsg(&out); err != nil {
			return fmt.Errorf("stream: send: %w", err)
		}
		var in []byte
		if err := s.RecvMsg(&in); err != nil {
			return fmt.Errorf("stream: receive: %w", err)
		}
		if string(in) != string(out) {
			return fmt.Errorf("stream: sent %q, got %q", out, in)
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	fmt.Printf("stream ok: %d messages\n", messages)
	return nil
}

// raw is the codec of messages that are bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "raw" }
