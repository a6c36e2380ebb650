# outrider serve on a Hopper GPU:
#
#   docker build -t outrider .
#   docker run --gpus all -p 8000:8000 -v /models/GLM-4.7-Flash:/model:ro outrider
#
# Arguments after the image's name are options of `outrider serve`. docs/gpu.md has more.
ARG CUDA=13.0.1

FROM nvidia/cuda:${CUDA}-cudnn-devel-ubuntu24.04 AS build
WORKDIR /outrider
COPY scripts/setup.sh scripts/
RUN scripts/setup.sh && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DOUTRIDER_BUILD_TESTS=OFF -DOUTRIDER_CUDA=ON \
  && cmake --build --preset release --target outrider

FROM nvidia/cuda:${CUDA}-cudnn-runtime-ubuntu24.04
# The libraries that the program is linked with, and Python's for chat templates.
RUN apt-get update \
  && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    libfmt9 libgrpc++1.51t64 libpcre2-8-0 libprotobuf32t64 libpython3.12 libspdlog1.12 libssl3 libyaml-cpp0.8 \
    libzmq5 prometheus-cpp-dev python3-jinja2 curl \
  && rm -rf /var/lib/apt/lists/* \
  && userdel --remove ubuntu \
  && useradd --uid 1000 --create-home outrider
COPY --from=build /outrider/build/release/outrider /usr/local/bin/outrider
USER outrider
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD curl -sf http://127.0.0.1:8000/health
ENTRYPOINT ["outrider", "serve", "/model", "--host", "0.0.0.0"]
