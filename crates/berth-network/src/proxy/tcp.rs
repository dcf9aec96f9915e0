//! TCP connections to Services.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Insiders, rotation::Rotation, serves};
use crate::sides::Sides;

/// Maximum number of connections that wait to be accepted by this process.
const BACKLOG: i32 = 1024;
/// Time limit for an endpoint to accept a connection. Endpoints are on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// Number of bytes to read at once in each direction.
const BUFFER: usize = 64 * 1024;
/// Idle time after which the kernel checks whether the other end still exists.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Pause after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

pub(super) async fn serve(
    listener: TcpListener,
    rotation: Arc<Rotation>,
    connections: Arc<Semaphore>,
    insiders: Option<Arc<Insiders>>,
    sides: Sides,
) {
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection to a Service could not be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let local = stream.local_addr().ok().map(|address| address.ip());
        let permit = connections.clone().try_acquire_owned();
        let Ok(permit) = permit
            .map_err(drop)
            .and_then(|it| if serves(client.ip(), local, insiders.as_deref()) { Ok(it) } else { Err(()) })
        else {
            reset(&stream);
            continue;
        };
        let (rotation, sides) = (rotation.clone(), sides.clone());
        tokio::spawn(async move {
            let _permit = permit;
            pass_on(stream, client, &rotation, &sides).await;
        });
    }
}

async fn pass_on(client: TcpStream, address: SocketAddr, rotation: &Rotation, sides: &Sides) {
    for endpoint in rotation.choose(address.ip()) {
        let connected = tokio::time::timeout(CONNECT, sides.connect(endpoint)).await;
        let server = match connected {
            Ok(Ok(server)) => server,
            Ok(Err(error)) => {
                tracing::debug!(%endpoint, %error, "an endpoint of a Service does not accept connections");
                continue;
            }
            Err(_) => continue,
        };
        rotation.chosen(address.ip(), endpoint);
        return relay(client, server).await;
    }
    reset(&client);
}

/// Copies bytes between two connections until both are closed.
pub(crate) async fn relay(mut client: TcpStream, mut server: TcpStream) {
    for stream in [&client, &server] {
        prepare(stream);
    }
    let copied = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await;
    if copied.is_err() {
        // The other end sees that the connection broke, as without a proxy.
        reset(&client);
        reset(&server);
    }
}

/// Sets socket options. If that fails, the connection still works, but may be slower or stay open
/// longer.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE));
}

/// Makes the kernel reset the connection when the stream is dropped.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
