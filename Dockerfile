# The archive of `make dist`, made with CUDA's compiler, beside the libraries that it needs on a GPU:
# scripts/CONTAINERS.md says how to use it.
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 AS build
WORKDIR /coda
COPY scripts/install_packages.sh scripts/
RUN scripts/install_packages.sh build && rm -rf /var/lib/apt/lists/*
COPY . .
ARG CUDA_ARCHS=
RUN make -s -j"$(nproc)" dist ${CUDA_ARCHS:+ALL_ARCHS="$CUDA_ARCHS"}
RUN mkdir /archive && tar -xzf build/coda-c-*.tar.gz -C /archive --strip-components=1

FROM nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04
COPY --from=build /archive /coda
WORKDIR /coda
CMD ["./scripts/quickstart.sh"]
