package sqlstore

import (
	"path/filepath"
	"syscall"
)

// shared are the magic numbers of file systems that other machines may have, too.
var shared = map[uint32]string{0x6969: "NFS", 0x517b: "SMB", 0xff534d42: "CIFS", 0xfe534d42: "SMB", 0x01021997: "9P", 0x65735546: "FUSE", 0x00c36400: "Ceph", 0x5346414f: "AFS"}

// network says that other machines may have the file system of a file, too; else "".
func network(file string) string {
	var s syscall.Statfs_t
	_ = syscall.Statfs(filepath.Dir(file), &s) // if it cannot tell, nothing is known
	if name := shared[uint32(s.Type)]; name != "" {
		return "the file is on " + name
	}
	return ""
}
