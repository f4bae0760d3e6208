# Sourced by the scripts beside it: sets $python to a Python that is new enough, or says what is missing.
for python in python3 python3.14 python3.13 python3.12 python3.11 ""; do
    if [ -z "$python" ]; then
        echo "Radish needs Python 3.11 or newer, and there is none on the PATH." >&2
        exit 1
    fi
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        break
    fi
done
