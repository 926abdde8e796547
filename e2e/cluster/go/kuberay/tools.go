//go:build tools

// Package tools pins the programs that the e2e cluster is built from.
package tools

import (
	_ "github.com/ray-project/kuberay/ray-operator"
)
