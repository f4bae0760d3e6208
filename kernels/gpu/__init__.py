"""The operations in Triton. Nothing here is imported where there is no GPU, tests apart."""
