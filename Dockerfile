# CUDA, cuDNN and what scripts/install_packages.sh adds: scripts/CONTAINERS.md says how to use it.
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04
WORKDIR /coda
COPY scripts/install_packages.sh scripts/
RUN scripts/install_packages.sh build && rm -rf /var/lib/apt/lists/*
COPY . .
# Those that make takes without a GPU. Were they forgotten, make would build again for the GPU of a
# container.
ARG CUDA_ARCHS="80 86 89 90"
ENV CUDA_ARCHS="$CUDA_ARCHS"
RUN make -s -j"$(nproc)" all
CMD ["./scripts/quickstart.sh"]
