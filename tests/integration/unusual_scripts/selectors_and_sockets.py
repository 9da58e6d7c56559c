import selectors, socket, threading
server = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = server.accept()
    with connection: connection.sendall(connection.recv(10).upper())
thread = threading.Thread(target=serve); thread.start()
with socket.create_connection(server.getsockname()) as client:
    client.sendall(b"hello"); print(client.recv(10))
thread.join(); server.close()
