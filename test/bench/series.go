package main

import (
	"fmt"
	"slices"
)

// series is one figure over the rounds.
type series []float64

func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	t := slices.Sorted(slices.Values(s))
	if n := len(t); n%2 == 0 {
		return (t[n/2-1] + t[n/2]) / 2
	}
	return t[len(t)/2]
}

// quantile of a series of single measurements, q in [0, 1].
func (s series) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	t := slices.Sorted(slices.Values(s))
	return t[min(int(q*float64(len(t))), len(t)-1)]
}

func (s series) mean() float64 {
	if len(s) == 0 {
		return 0
	}
	var sum float64
	for _, v := range s {
		sum += v
	}
	return sum / float64(len(s))
}

// spread is the median with the least and the greatest.
func (s series) spread() string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%s..%s)", short(s.median()), short(slices.Min(s)), short(slices.Max(s)))
}

func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// mirrored is the order of a round: there and back, so that a load that rises or falls meanwhile is the same for everyone.
func mirrored(n int) []int {
	out := make([]int, 0, 2*n)
	for i := range n {
		out = append(out, i)
	}
	for i := n - 1; i >= 0; i-- {
		out = append(out, i)
	}
	return out
}
