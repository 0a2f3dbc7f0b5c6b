FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY configs configs
COPY server server
RUN python -m venv /opt/zhiku && /opt/zhiku/bin/pip install --no-cache-dir -c constraints.txt '.[pg]'

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 zhiku && install -d -o zhiku /data
COPY --from=build /opt/zhiku /opt/zhiku
USER zhiku
ENV PATH=/opt/zhiku/bin:$PATH ZHIKU_DATA_DIR=/data ZHIKU_HOST=0.0.0.0 OMP_NUM_THREADS=1
VOLUME /data
EXPOSE 7861
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7861/health', timeout=4)"]
CMD ["zhiku", "serve"]
