# Synkhronos in a Linux container, for macOS and Windows.
#   docker build -t synkhronos .
#   docker run --rm -it synkhronos                            a Python prompt
#   docker run --rm -v "$PWD":/work synkhronos python train.py    your script
# The container's cores and memory are those that Docker's settings allow.
FROM python:3.12-slim

# mode C of PyTensor needs a C++ compiler; NUMBA, the default, does not
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# not as root; PyTensor keeps its compiled code in the user's home
RUN useradd --create-home member
COPY pyproject.toml setup.py README.rst LICENSE /source/
COPY synkhronos /source/synkhronos
RUN pip install --no-cache-dir "/source[pymc,train]" && rm -r /source

USER member
WORKDIR /work
# fails if no group can be started
RUN synk doctor
CMD ["python"]
