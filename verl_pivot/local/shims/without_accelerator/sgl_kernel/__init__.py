"""Stands in for SGLang's CUDA kernels where there is no accelerator; see ../../sitecustomize.py."""
