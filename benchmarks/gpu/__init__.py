"""Evidence from a real GPU: captures, and the truth to hold predictions against.

    python -m benchmarks.gpu [--part NAME …] [--minutes N] [--out FOLDER]

benchmarks/gpu/README.md describes what each part measures and how to bring the results home.
"""
