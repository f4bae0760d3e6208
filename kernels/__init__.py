"""The operations of one step: plain torch as the oracle, faster implementations beside it."""
