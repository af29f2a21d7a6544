# A client of a tunnel whose machine vanishes: once it is open, the kernel drops whatever arrives for it, so that nothing is
# acknowledged any more and nothing is said about it.
use strict;
use warnings;
use Socket;

my ($host, $port, $request) = @ARGV;
socket(my $socket, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
connect($socket, sockaddr_in($port, inet_aton($host))) or die "connect: $!";
syswrite($socket, $request) or die "write: $!";
my $heard = '';
while ($heard !~ /\r\n\r\nhello/) {
    sysread($socket, $heard, 4096, length $heard) or die "it ended: $heard";
}
# BPF_RET | BPF_K, 0: of every packet, nothing is kept. SO_ATTACH_FILTER is 26.
my $program = pack('S C C L', 0x06, 0, 0, 0);
setsockopt($socket, SOL_SOCKET, 26, pack('S x![P] P', 1, $program)) or die "filter: $!";
$| = 1;
print "gone\n";
sleep 600;
