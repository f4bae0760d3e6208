"""A decoder's whole step as one native call: C++ built by the system's compiler on first use."""
