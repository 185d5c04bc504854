"""What tools/bench measures with: work from the kernels' own cases, peers, clocks and reports."""
