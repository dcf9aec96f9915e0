"""Makes images with the names of the suite's test images, as one file of `docker save`.

Usage: images.py FOLDER PROGRAMS SOURCES OUTPUT. FOLDER has Debian's base system (`base`), busybox
(`busybox`) and a static bash (`bash-static`), PROGRAMS the programs of Kubernetes' test images,
SOURCES their folder in Kubernetes.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

folder, programs, sources, output = sys.argv[1:]
base = f"{folder}/base"
LIBRARIES = ["ld-linux-x86-64.so.2", "libc.so.6", "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2"]
# The shell of Debian's busybox does not pass on variables whose names are no identifiers. Newer ones
# do, and bash. The messages of the shell are busybox's where there are no such variables.
SHELL = """#!/bin/bash
while IFS= read -r -d '' variable; do
    [[ ${variable%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || exec -a "$0" /bin/bash "$@"
done 2>/dev/null </proc/self/environ
exec -a "$0" /bin/busybox "$@"
"""
NGINX = """worker_processes 1;
error_log /dev/stderr;
pid /run/nginx.pid;
events {}
http {
  access_log /dev/stdout;
  include mime.types;
  server { listen 80; root /usr/share/nginx/html; }
}
"""


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Layer:
    """A layer under construction."""

    def __init__(self, name):
        self.path = f"{folder}/{name}.layer.tar"
        self.tar = tarfile.open(self.path, "w")

    def entry(self, path, kind, mode=0o755, link="", data=b""):
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
        self.tar.addfile(info, io.BytesIO(data))

    def folders(self, *paths, mode=0o755):
        for path in paths:
            self.entry(path, tarfile.DIRTYPE, mode)

    def file(self, path, data, mode=0o644):
        self.entry(path, tarfile.REGTYPE, mode, data=data if isinstance(data, bytes) else data.encode())

    def link(self, path, target):
        self.entry(path, tarfile.SYMTYPE, link=target)

    def done(self):
        self.tar.close()
        return self.path


def debian():
    left_out = ("var/cache/apt", "var/lib/apt", "usr/share/doc", "usr/share/man", "proc/", "sys/", "dev/")
    layer = Layer("debian")
    layer.tar.add(base, arcname="", filter=lambda info: None if info.name.startswith(left_out) else info)
    return layer.done()


def agnhost():
    layer = Layer("agnhost")
    layer.file("agnhost", read(f"{programs}/agnhost"), 0o755)
    layer.link("agnhost-2", "agnhost")
    layer.folders("uploads")
    for name in ("localhost.crt", "localhost.key"):
        layer.file(name, read(f"{sources}/agnhost/porter/{name}"))
    user = "user-defined-in-image"
    layer.file("etc/passwd", read(f"{base}/etc/passwd") + f"{user}:x:1000:1000::/home:/bin/sh\n".encode())
    groups = f"{user}:x:1000:\ngroup-defined-in-image:x:50000:{user}\n"
    layer.file("etc/group", read(f"{base}/etc/group") + groups.encode())
    return layer.done()


def busybox():
    layer = Layer("busybox")
    layer.folders("bin", "etc", "root", "home", "usr", "usr/bin", "usr/sbin", "var", "var/www", "sbin")
    layer.folders("usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu")
    layer.folders("tmp", mode=0o1777)
    program = f"{folder}/busybox/bin/busybox"
    layer.file("bin/busybox", read(program), 0o755)
    for applet in subprocess.check_output([program, "--list"], text=True).split():
        if applet not in ("busybox", "sh"):
            layer.link(f"bin/{applet}", "busybox")
    layer.file("bin/bash", read(f"{folder}/bash-static/bin/bash-static"), 0o755)
    layer.file("bin/sh", SHELL, 0o755)
    layer.link("usr/bin/env", "../../bin/busybox")
    layer.link("lib", "usr/lib")
    layer.link("lib64", "usr/lib64")
    layer.link("usr/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    for library in LIBRARIES:
        path = f"usr/lib/x86_64-linux-gnu/{library}"
        layer.file(path, read(f"{base}/{path}"), 0o755)
    layer.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n")
    layer.file("etc/group", "root:x:0:\nnogroup:x:65534:\n")
    return layer.done()


def nginx():
    layer = Layer("nginx")
    layer.file("etc/nginx/nginx.conf", NGINX)
    layer.file("usr/share/nginx/html/index.html", "<h1>Welcome to nginx!</h1>\n")
    return layer.done()


def pages(name):
    """The files that an image of the update demo serves."""
    layer = Layer(name)
    for file in sorted(os.listdir(f"{sources}/{name}/html")):
        layer.file(file, read(f"{sources}/{name}/html/{file}"))
    # A spec reads in a volume of this image which distribution it is made from.
    layer.file("etc/os-release", 'NAME="Alpine Linux"\n')
    return layer.done()


def program(name, path, mode=0o755):
    layer = Layer(name)
    layer.file(path, read(f"{programs}/{name}"), mode)
    return layer.done()


def etcd():
    layer = Layer("etcd")
    layer.link("usr/local/bin/etcd", "/usr/bin/etcd")
    return layer.done()


def pause():
    layer = Layer("pause")
    layer.file("pause", read(f"{programs}/agnhost"), 0o755)
    return layer.done()


system, tools, web = debian(), agnhost(), nginx()
agnhost_image = ([system, tools], {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]})
nginx_image = ([system, web], {"Cmd": ["nginx", "-g", "daemon off;"]})
server = {"Entrypoint": ["/agnhost"], "Cmd": ["test-webserver"]}
REPOSITORY = "registry.k8s.io/e2e-test-images/"
images = {
    REPOSITORY + "agnhost:2.63.0": agnhost_image,
    REPOSITORY + "agnhost:2.55": agnhost_image,
    REPOSITORY + "busybox:1.37.0-1": ([busybox()], {"Cmd": ["sh"]}),
    REPOSITORY + "nginx:1.15-4": nginx_image,
    REPOSITORY + "nginx:1.27-0": nginx_image,
    REPOSITORY + "nonroot:1.5": ([system], {"User": "1234", "Cmd": ["bash"]}),
    REPOSITORY + "perl:5.26": ([system], {"Cmd": ["perl"]}),
    REPOSITORY + "glibc-dns-testing:2.0.0": ([system], {"Cmd": ["bash"]}),
    REPOSITORY + "ipc-utils:1.4": ([system], {"Cmd": ["sh"]}),
    REPOSITORY + "kitten:1.8": ([system, tools, pages("kitten")], server),
    REPOSITORY + "nautilus:1.8": ([system, tools, pages("nautilus")], server),
    REPOSITORY + "nonewprivs:1.4": ([system, program("nnp", "usr/local/bin/nnp", 0o4755)], {"Cmd": ["nnp"]}),
    REPOSITORY + "sample-apiserver:1.29.2": (
        [system, program("sample-apiserver", "sample-apiserver")],
        {"Entrypoint": ["/sample-apiserver"]},
    ),
    "registry.k8s.io/etcd:3.6.8-0": ([system, etcd()], {"Cmd": ["etcd"]}),
    "registry.k8s.io/pause:3.10.2": ([pause()], {"Entrypoint": ["/pause", "pause"]}),
}


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
digests, manifest = {}, []
image_file = Layer("images")
for name, (layers, config) in images.items():
    for layer in layers:
        if layer not in digests:
            digests[layer] = digest(layer)
            image_file.tar.add(layer, arcname=f"{digests[layer]}.tar")
    ids = [digests[layer] for layer in layers]
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [PATH], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{id}" for id in ids]},
    }
    text = json.dumps(described).encode()
    file = hashlib.sha256(text).hexdigest() + ".json"
    image_file.file(file, text)
    manifest.append({"Config": file, "RepoTags": [name], "Layers": [f"{id}.tar" for id in ids]})
image_file.file("manifest.json", json.dumps(manifest))
os.rename(image_file.done(), output)
for layer in digests:
    os.remove(layer)
