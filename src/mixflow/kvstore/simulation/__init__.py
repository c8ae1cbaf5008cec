"""The same policies and servers on a modelled network, with a clock of events."""
