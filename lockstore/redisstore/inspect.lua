changed = false -- it writes nothing
return told(places) .. listed()
