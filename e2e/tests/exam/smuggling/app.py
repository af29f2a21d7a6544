import json, socket, threading

lock = threading.Lock()
out = open('record', 'a')


def note(line, host, body):
    with lock:
        out.write(json.dumps({'line': line, 'host': host, 'body': body}) + '\n')
        out.flush()


def whole(f):
    line = f.readline()
    if not line.endswith(b'\n'):
        raise EOFError
    return line


def chunked(f):
    body = b''
    while size := int(whole(f).split(b';')[0], 16):
        body += exactly(f, size)
        assert whole(f) == b'\r\n'
    while whole(f) != b'\r\n':
        pass
    return body


def exactly(f, size):
    body = f.read(size)
    if len(body) < size:
        raise EOFError
    return body


def one(f, c):
    """One request as the standard frames it. What comes cut is not counted; what comes behind it is."""
    line = f.readline()
    if not line:
        return False
    fields = []
    while (field := f.readline()) not in (b'\r\n', b''):
        name, value = field.decode('latin-1').split(':', 1)
        fields.append((name.lower(), value.strip()))
    every = lambda name: [value for known, value in fields if known == name]
    lengths = every('content-length')
    if every('transfer-encoding'):
        assert every('transfer-encoding') == ['chunked'] and not lengths, fields
        body = chunked(f)
    else:
        assert len(lengths) < 2, fields
        body = exactly(f, int(lengths[0]) if lengths else 0)
    note(line.decode('latin-1').strip(), every('host'), body.decode('latin-1'))
    status = (every('x-status') or ['200'])[0]
    text = b'' if line.startswith(b'HEAD ') else b'ok'
    answer = b'HTTP/1.1 %s X\r\nContent-Length: 2\r\n\r\n%s' % (status.encode(), text)
    if status == '101':
        c.sendall(b'HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n')
        c.recv(100)
        return False
    if status == 'twice':
        answer = b'HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 X\r\nContent-Length: 6\r\n\r\nstolen'
    c.sendall(answer)
    return True


def serve(c):
    try:
        with c, c.makefile('rb') as f:
            while one(f, c):
                pass
    except (EOFError, OSError):
        pass
    except Exception as error:
        note('broken: %r' % error, [], '')


s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', 8080))
s.listen(100)
open('ready', 'w').close()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
