"""A simulator of faults: whole fleets on a virtual clock, with everything that goes wrong drawn from one seed."""
