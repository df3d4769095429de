package sqlstore

import "testing"

// The mount that has the file counts, also if it is named before another one.
func TestNetwork(t *testing.T) {
	const mounts = "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/vdb /home/local ext4 rw 0 0\n//server/share /share cifs rw 0 0\n" +
		"sshfs /mnt/far fuse.sshfs rw 0 0\n/dev/sdc /mnt/near fuseblk rw 0 0\nnone /homes 9p rw 0 0\n"
	for file, want := range map[string]bool{
		"/var/lib/locks.db": false, "/home/me/locks.db": true, "/home/local/locks.db": false, "/homework/locks.db": false, "/homes/locks.db": true,
		"/share/locks.db": true, "/mnt/far/a/locks.db": true, "/mnt/near/locks.db": false, "": false,
	} {
		if got := network(file, mounts); (got != "") != want {
			t.Errorf("%s: %q", file, got)
		}
	}
	if got := network("/home/locks.db", ""); got != "" {
		t.Error(got)
	}
}
