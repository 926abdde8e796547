//go:build tools

// Package tools pins the programs that the e2e cluster is built from.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
