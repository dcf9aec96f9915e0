# The image that `berth install` and the chart name: the program and the system libraries it needs.
# Build it from the root of the checkout: docker build -t ghcr.io/berth-batch/berth:VERSION .

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
# SQLite, ring and mimalloc are compiled from C; the image has the compiler for it.
RUN cargo build --profile dist --locked -p berth --bin berth

# Has glibc, CA certificates and time zones, and neither a shell nor a user that can log in.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /src/target/dist/berth /usr/local/bin/berth
# A number, so that runAsNonRoot can be checked before the container starts; the manifests name the same.
USER 65532:65532
EXPOSE 8080 8081 9443
ENTRYPOINT ["/usr/local/bin/berth"]
