"""Whether clusters would help: `coordinator advise`, and the method Kin, which finds groups by what devices are like."""
