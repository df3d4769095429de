changed = false -- it writes nothing
return told(waiting()) .. listed()
