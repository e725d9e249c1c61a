// goclient makes one gRPC call, as told by a line of JSON on standard input, and prints how it ended.
// It cancels the call when standard input is closed.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type request struct {
	Head  []byte `json:"head"`
	Zeros int    `json:"zeros"`
}

type order struct {
	Address, Name, Root, Certificate, Key string
	Method                                string
	Requests                              []request
	Many                                  bool // messages of the request, as the client sees the method
	AnswersMany                           bool
	Seconds                               float64
	Metadata                              [][2]string // values of -bin keys in hexadecimal
	Compression                           string
	Wait                                  bool
	Keepalive                             bool
}

type answer struct {
	Code     uint32   `json:"code"`
	Message  string   `json:"message"`
	Details  []byte   `json:"details"`
	Messages [][]byte `json:"messages"`
}

// raw passes messages through as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "proto" }

// made is a compressor that no server knows.
type made struct{}

func (made) Compress(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil }
func (made) Decompress(r io.Reader) (io.Reader, error)    { return r, nil }
func (made) Name() string                                 { return "made-up" }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func main() {
	encoding.RegisterCompressor(made{})
	lines := bufio.NewReader(os.Stdin)
	line, err := lines.ReadBytes('\n')
	check(err)
	var told order
	check(json.Unmarshal(line, &told))
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(told.Seconds*float64(time.Second)))
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		cancel()
	}()
	messages, err := call(ctx, told)
	ended := status.Convert(err)
	out := answer{Code: uint32(ended.Code()), Message: ended.Message(), Messages: messages}
	if len(ended.Proto().GetDetails()) > 0 {
		out.Details, err = proto.Marshal(ended.Proto())
		check(err)
	}
	check(json.NewEncoder(os.Stdout).Encode(out))
}

func call(ctx context.Context, told order) ([][]byte, error) {
	connection, err := dial(told)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	for _, pair := range told.Metadata {
		value := pair[1]
		if strings.HasSuffix(pair[0], "-bin") {
			plain, err := hex.DecodeString(value)
			if err != nil {
				return nil, err
			}
			value = string(plain)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, pair[0], value)
	}
	options := []grpc.CallOption{grpc.ForceCodec(raw{}), grpc.WaitForReady(told.Wait)}
	if told.Compression != "" {
		options = append(options, grpc.UseCompressor(told.Compression))
	}
	description := &grpc.StreamDesc{ClientStreams: told.Many, ServerStreams: told.AnswersMany}
	if !told.Many && !told.AnswersMany {
		message, received := whole(told.Requests[0]), []byte{}
		if err := connection.Invoke(ctx, told.Method, &message, &received, options...); err != nil {
			return nil, err
		}
		return [][]byte{received}, nil
	}
	stream, err := connection.NewStream(ctx, description, told.Method, options...)
	if err != nil {
		return nil, err
	}
	for _, each := range told.Requests {
		message := whole(each)
		if err := stream.SendMsg(&message); err != nil {
			break // the reason is what RecvMsg says
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var messages [][]byte
	for {
		var received []byte
		err := stream.RecvMsg(&received)
		if err == io.EOF {
			return messages, nil
		}
		if err != nil {
			return messages, err
		}
		messages = append(messages, received)
		if !told.AnswersMany {
			return messages, nil
		}
	}
}

func dial(told order) (*grpc.ClientConn, error) {
	pem, err := os.ReadFile(told.Root)
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	settings := &tls.Config{RootCAs: pool, ServerName: told.Name, MinVersion: tls.VersionTLS13}
	if told.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(told.Certificate, told.Key)
		check(err)
		settings.Certificates = []tls.Certificate{pair}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(settings)), grpc.WithDisableServiceConfig(),
	}
	if told.Keepalive {
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second}))
	}
	return grpc.NewClient("passthrough:///"+told.Address, options...)
}

func whole(part request) []byte {
	return append(bytes.Clone(part.Head), make([]byte, part.Zeros)...)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
